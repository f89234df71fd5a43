"""Evaluators: judge the newest variables when the ledger says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import devices
from ...evaluation.evaluator import Evaluator
from ...files.best import BestPolicy
from ..supervision import role
from . import rpc
from .actor import RoleStop
from .ledger import DONE

if TYPE_CHECKING:
    from ...factory import ComponentFactory
    from .variable_board import VariableBoard

_ASK_SECONDS = 0.25


class EvaluatorRole:
    """One of the evaluators of a program."""

    def __init__(
        self,
        factory: ComponentFactory,
        index: int,
        counter: rpc.Remote,
        board: VariableBoard,
        best: str,
    ):
        """Connects to the others; nothing is made yet.

        Args:
          factory: of the policy.
          index: its number among the evaluators.
          counter: gives the orders and takes the outcomes.
          board: has the variables.
          best: folder of the run's best policy.
        """
        self._factory = factory
        self._name = f"evaluator/{index}"
        self._counter, self._board = counter, board
        self._best = BestPolicy(best)

    def run(self) -> None:
        reader, factory = self._board.reader(), self._factory
        device = devices.named(factory.experiment.actor_device, "actor")
        evaluator = Evaluator(factory.experiment, factory.spec, factory.networks, reader, device)
        while not role.pause(_ASK_SECONDS):
            order = rpc.insist(self._counter.next_evaluation, self._name)
            if order is None:
                if rpc.insist(self._counter.look)["phase"] == DONE:
                    return
                continue
            while reader.version < order["version"]:
                rpc.check_stop()
            outcome = evaluator.run(
                order["index"],
                order["episodes"],
                order["actor_steps"],
                RoleStop(),
                order["learner_steps"],
            )
            if outcome is None:
                return
            evaluator.keep(self._best, order["index"], outcome)
            summary = {**outcome.summary(), "index": order["index"]}
            rpc.insist(self._counter.finish_evaluation, self._name, summary)
