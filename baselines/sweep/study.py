"""The study of Optuna that proposes settings, kept in a file of the sweep's directory.

A trial of the sweep has an index from 0. If the sweep is killed, the trials that ran are tried
again as new trials of Optuna's, each with its index and its settings. If several have one index,
the last counts.
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...launch.errors import RunError
from .request import SweepRequest
from .space import Choices

if TYPE_CHECKING:
    import optuna

FILE = "optuna.db"
_INDEX, _ERROR = "index", "error"
_NAME = "sweep"
_LEAST_EXPLAINED = 8


class Proposal(NamedTuple):
    """One trial to run."""

    number: int
    """Of the trial, from 0."""
    settings: Mapping[str, Any]
    """Of the swept fields: numbers, or texts as the command line takes them."""
    trial: Any
    """Optuna's."""


class Tried(NamedTuple):
    """The state and the result of a trial."""

    number: int
    """From 0."""
    state: str
    """complete, pruned, failed or running."""
    settings: Mapping[str, Any]
    value: float | None
    """The last return that was told of it."""
    evaluations: Mapping[int, float]
    """Returns by the number of the evaluation, from 1."""
    error: str | None


class Study:
    """Proposes settings, judges trials on their way, and remembers all of them."""

    def __init__(self, folder: pathlib.Path, request: SweepRequest, evaluations: int):
        """Opens the study in a folder, or begins one.

        The first third of the trials, at most 10, is drawn at random. Equal seeds propose the same,
        as far as one trial at a time runs; a study that is opened again goes on as it would have.

        Args:
          folder: of the sweep.
          request: what is asked. Trials that are worse than half of the others are pruned.
          evaluations: of a whole trial. In the first third of them none is pruned.

        Raises:
          RunError: if there is a study that cannot be read.
        """
        import optuna
        import sqlalchemy

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._space, self._seed = optuna, request.space, request.recipe.seed
        self._startup = max(3, min(10, request.trials // 3))
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if request.prune:
            warm = max(2, evaluations // 3)
            pruner = optuna.pruners.MedianPruner(self._startup, n_warmup_steps=warm)
        try:
            # Without a pool every connection is closed when it has been used.
            storage = optuna.storages.RDBStorage(
                f"sqlite:///{folder / FILE}",
                engine_kwargs={"poolclass": sqlalchemy.pool.NullPool},
            )
            self._study = optuna.create_study(
                storage=storage,
                study_name=_NAME,
                direction="maximize",
                pruner=pruner,
                load_if_exists=True,
            )
        except Exception as error:  # SQLAlchemy's own, of many kinds.
            reason = " ".join(str(error).split())[:200]
            raise RunError(f"cannot open the study {folder / FILE}: {reason}") from error
        self._distributions = {name: self._distribution(one) for name, one in self._space.items()}

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Has these be the first to be tried."""
        self._study.enqueue_trial(dict(settings))

    def recover(self) -> list[int]:
        """Has the trials that ran when the sweep was killed be tried again; their indices."""
        state = self._optuna.trial.TrialState
        again = []
        for frozen in self._study.get_trials(deepcopy=False, states=(state.RUNNING,)):
            self._study.tell(frozen.number, state=state.FAIL)
            index = frozen.user_attrs.get(_INDEX)
            if index is not None and set(frozen.params) == set(self._space):
                self._study.enqueue_trial(frozen.params, user_attrs={_INDEX: index})
                again.append(index)
        return again

    def begun(self) -> int:
        """Number of trials so far, including those that wait to be tried again."""
        return len(self._by_index())

    def propose(self, trials: int) -> Proposal | None:
        """The next trial; None where there are that many already."""
        begun = self.begun()
        waiting = self._study.get_trials(
            deepcopy=False, states=(self._optuna.trial.TrialState.WAITING,)
        )
        if begun >= trials and not any(_INDEX in frozen.user_attrs for frozen in waiting):
            return None
        # A sampler that goes on with its random numbers would begin anew in a resumed study.
        words = np.random.SeedSequence(self._seed, spawn_key=(begun,)).generate_state(1)
        self._study.sampler = self._optuna.samplers.TPESampler(
            n_startup_trials=self._startup, seed=int(words[0])
        )
        trial = self._study.ask(self._distributions)
        index = trial.user_attrs.get(_INDEX)
        if index is None:
            index = begun
            trial.set_user_attr(_INDEX, index)
        return Proposal(index, dict(trial.params), trial)

    def report(self, proposal: Proposal, step: int, value: float) -> bool:
        """Takes the return of an evaluation; whether the trial is to be pruned.

        Args:
          proposal: of the trial.
          step: number of the evaluation, from 1.
          value: the return.
        """
        proposal.trial.report(value, step)
        return proposal.trial.should_prune()

    def complete(self, proposal: Proposal, value: float) -> None:
        """Takes the return that a trial came to."""
        self._study.tell(proposal.trial, value)

    def prune(self, proposal: Proposal) -> None:
        self._study.tell(proposal.trial, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, proposal: Proposal, reason: str) -> None:
        proposal.trial.set_user_attr(_ERROR, reason)
        self._study.tell(proposal.trial, state=self._optuna.trial.TrialState.FAIL)

    def tried(self) -> list[Tried]:
        """All trials, by index."""
        states = self._optuna.trial.TrialState
        names = {
            states.COMPLETE: "complete",
            states.PRUNED: "pruned",
            states.FAIL: "failed",
            states.RUNNING: "running",
            states.WAITING: "running",
        }
        found = []
        for index, frozen in sorted(self._by_index().items()):
            values = dict(sorted(frozen.intermediate_values.items()))
            last = next(reversed(values.values()), None)
            settings = frozen.params or frozen.system_attrs.get("fixed_params", {})
            found.append(
                Tried(
                    index,
                    names[frozen.state],
                    settings,
                    frozen.value if frozen.state == states.COMPLETE else last,
                    values,
                    frozen.user_attrs.get(_ERROR),
                )
            )
        return found

    def importances(self) -> dict[str, float]:
        """Computes the importance of each swept field for good trials, by PED-ANOVA.

        Fewer than 8 complete trials would show chance only, and give {}; so do trials that the
        method fails on. See Watanabe et al. 2023, https://arxiv.org/abs/2304.10255.
        """
        complete = self._optuna.trial.TrialState.COMPLETE
        if len(self._study.get_trials(deepcopy=False, states=(complete,))) < _LEAST_EXPLAINED:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # Of too few trials.
            try:
                found = self._optuna.importance.get_param_importances(
                    self._study, evaluator=evaluator
                )
            except (ValueError, RuntimeError, UserWarning):
                return {}
        return dict(found)

    def _by_index(self) -> dict[int, optuna.trial.FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False)
        found = {one.user_attrs[_INDEX]: one for one in trials if _INDEX in one.user_attrs}
        return found

    def _distribution(self, dimension: Any) -> optuna.distributions.BaseDistribution:
        distributions = self._optuna.distributions
        if isinstance(dimension, Choices):
            return distributions.CategoricalDistribution(dimension.texts)
        low, high = dimension.ends
        if dimension.integer:
            return distributions.IntDistribution(int(low), int(high), log=dimension.log)
        return distributions.FloatDistribution(low, high, log=dimension.log)
