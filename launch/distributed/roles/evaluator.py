"""Evaluators: judge the newest variables when the ledger says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....agents.variables.reader import VariableReader
from ...judging.evaluation import Evaluator
from ..engines.launchpad import calls
from ..supervision import role
from .actor import RoleStop
from .ledger import DONE

if TYPE_CHECKING:
    from ....environments import EnvironmentSpec
    from ...experiment import Experiment

_ASK_SECONDS = 0.25


class EvaluatorRole:
    """One of the evaluators of a program."""

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvironmentSpec,
        index: int,
        counter: calls.Remote,
        variables: calls.Remote,
    ):
        """Connects to the others; nothing is made yet.

        Args:
          experiment: what is run.
          spec: of one environment.
          index: its number among the evaluators.
          counter: gives the orders and takes the outcomes.
          variables: the variable server.
        """
        self._experiment, self._spec = experiment, spec
        self._name = f"evaluator/{index}"
        self._counter, self._variables = counter, variables

    def run(self) -> None:
        reader = VariableReader(self._variables, while_waiting=calls.check_stop)
        networks = self._experiment.make_networks(self._spec)
        evaluator = Evaluator(self._experiment, self._spec, networks, reader)
        while not role.pause(_ASK_SECONDS):
            order = calls.insist(self._counter.next_evaluation, self._name)
            if order is None:
                if calls.insist(self._counter.look)["phase"] == DONE:
                    return
                continue
            while reader.version < order["version"]:
                calls.check_stop()
            outcome = evaluator.run(
                order["index"], order["episodes"], order["actor_steps"], RoleStop()
            )
            if outcome is None:
                return
            summary = {**outcome.summary(), "index": order["index"]}
            calls.insist(self._counter.finish_evaluation, self._name, summary)
