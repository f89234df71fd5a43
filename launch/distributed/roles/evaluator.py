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
    from ....agents.programs.placement import Partition
    from ...factory import ComponentFactory
    from .variable_board import VariableBoard

_ASK_SECONDS = 0.1


class EvaluatorRole:
    """One of the evaluators of a program."""

    def __init__(
        self,
        factory: ComponentFactory,
        index: int,
        counter: rpc.Remote,
        board: VariableBoard,
        best: str,
        partition: Partition | None = None,
    ):
        """Connects to the others; makes nothing yet.

        Args:
          factory: of the policy.
          index: its number among the evaluators.
          counter: gives the orders and takes the outcomes.
          board: has the variables.
          best: folder of the run's best policy.
          partition: over which the policy is computed; None: one device.
        """
        self._factory, self._partition = factory, partition
        self._name = f"evaluator/{index}"
        self._counter, self._board = counter, board
        self._best = BestPolicy(best)

    def run(self) -> None:
        factory, device = self._factory, self._partition
        reader = self._board.reader(**({} if device is None else {"on_host": True}))
        if device is None:
            device = devices.named(factory.experiment.actor_device, "actor")
        evaluator = Evaluator(factory.experiment, factory.spec, factory.networks, reader, device)
        evaluator.warm_up()  # Or it would be compiling when the first evaluations are due.
        while not role.pause(_ASK_SECONDS):
            order = rpc.insist(self._counter.next_evaluation, self._name)
            if order is None:
                if rpc.insist(self._counter.look)["phase"] == DONE:
                    return
                continue
            reader.ask()  # Newer ones may be there than those that its thread has found.
            while reader.version < order["version"]:
                rpc.check_stop()
            outcome = evaluator.run(
                order["index"],
                order["episodes"],
                order["actor_steps"],
                RoleStop(),
                order["learner_steps"],
                lambda line: rpc.insist(self._counter.note, line),
            )
            if outcome is None:
                return
            evaluator.keep(self._best, order["index"], outcome)
            summary = {**outcome.to_monitor(), "index": order["index"]}
            rpc.insist(self._counter.finish_evaluation, self._name, summary)
