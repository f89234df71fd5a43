"""Evaluators: judge the newest variables when the ledger says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...files.best import BestPolicy
from ...judging.evaluation import Evaluator
from ..supervision import role
from . import calls
from .actor import RoleStop
from .ledger import DONE

if TYPE_CHECKING:
    from ...maker import Maker
    from .board import VariableBoard

_ASK_SECONDS = 0.25


class EvaluatorRole:
    """One of the evaluators of a program."""

    def __init__(
        self,
        maker: Maker,
        index: int,
        counter: calls.Remote,
        board: VariableBoard,
        best: str,
    ):
        """Connects to the others; nothing is made yet.

        Args:
          maker: of the policy.
          index: its number among the evaluators.
          counter: gives the orders and takes the outcomes.
          board: has the variables.
          best: folder of the run's best policy.
        """
        self._maker = maker
        self._name = f"evaluator/{index}"
        self._counter, self._board = counter, board
        self._best = BestPolicy(best)

    def run(self) -> None:
        reader, maker = self._board.reader(), self._maker
        evaluator = Evaluator(maker.experiment, maker.spec, maker.networks, reader)
        while not role.pause(_ASK_SECONDS):
            order = calls.insist(self._counter.next_evaluation, self._name)
            if order is None:
                if calls.insist(self._counter.look)["phase"] == DONE:
                    return
                continue
            while reader.version < order["version"]:
                calls.check_stop()
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
            calls.insist(self._counter.finish_evaluation, self._name, summary)
