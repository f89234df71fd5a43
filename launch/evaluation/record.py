"""Recording what a trained policy does: `troupe record`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from ... import environments
from ...agents.programs import runtime
from ...agents.replay.nests import Structure
from ...agents.replay.offline.dataset import Episode, of_episodes
from ...environments import action_masks
from .. import seeds
from ..data import recording
from ..errors import RequestError
from ..logging.report import Reporter
from . import checkpoint as judging
from .loading import learned

if TYPE_CHECKING:
    from ...agents.replay.offline.dataset import Dataset

_FIRST, _LAST = int(dm_env.StepType.FIRST), int(dm_env.StepType.LAST)
_ENVIRONMENTS = 10
"""Stepped together, at most."""


class Recorded(NamedTuple):
    """A recording, and its file."""

    path: pathlib.Path
    dataset: Dataset


def record(
    run: str | os.PathLike[str],
    *,
    steps: int,
    out: str | os.PathLike[str] | None = None,
    epsilon: float = 0.0,
    stochastic: bool = False,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> Recorded:
    """Plays the policy of a run's newest checkpoint and writes down what it does.

    Args:
      run: directory of a run that `troupe train` started, ended or not.
      steps: actions recorded; episodes that have not ended by then are cut short.
      out: file of the recording; None: recording.npz in the run's directory.
      epsilon: chance of an action drawn uniformly in place of the policy's.
      stochastic: have the policy draw its actions as in training; else it plays as in evaluations.
      seed: of these episodes; they are none that the run saw.
      reporter: where warnings go.

    Raises:
      RequestError: if there is no such run or no checkpoint yet, the file cannot be written, or
        there are no actions to draw from.
      CheckpointError: if every checkpoint is damaged.
    """
    if steps < 1:
        raise RequestError(f"{steps} steps were to be recorded; record at least 1.")
    if not 0.0 <= epsilon <= 1.0:
        raise RequestError(f"epsilon is {epsilon}; it must lie between 0 and 1.")
    runtime.configure_cpu()
    path = pathlib.Path(run, "recording.npz") if out is None else pathlib.Path(out)
    recording.require_free(path)
    found = learned(run, "newest", None, (reporter or Reporter()).line)
    experiment, checkpoint = found.experiment, found.checkpoint
    environment = experiment.make_environment(
        seed=seeds.derive(experiment.seed, "evaluation_environment", seed, 2),
        num_envs=min(_ENVIRONMENTS, steps),
        evaluation=True,
    )
    with environment:
        spec = environments.make_spec(environment)
        policy_seed = seeds.derive(experiment.seed, "evaluation_actor", seed, 2)
        actor = judging.make_actor(found, environment, policy_seed, explores=stochastic)
        choose = _with_random_actions(actor.select_action, spec.actions, epsilon, policy_seed)
        episodes = _play(environment, actor, choose, steps)
    dataset = of_episodes(spec.observations, spec.actions, episodes, str(path))
    about = {
        "agent": experiment.builder.name,
        "env": experiment.env,
        "policy": "stochastic" if stochastic else "as evaluated",
        "epsilon": epsilon,
        "seed": seed,
        "actor_steps": checkpoint.counters["actor_steps"],
        "learner_steps": checkpoint.counters["learner_steps"],
    }
    recording.write(path, dataset, about)
    return Recorded(path, dataset)


def _play(
    environment: Any, actor: Any, choose: Callable[[Any], Any], steps: int
) -> Iterator[Episode]:
    """The episodes of so many actions, over all environments of a vector."""
    timestep = environment.reset()
    actor.observe_first(timestep)
    observed = Structure(environment.observation_spec(), "observation")
    acted = Structure(environment.action_spec(), "action")
    streams = [_Stream() for _ in range(environment.num_envs)]
    taken = 0
    while True:
        kinds = timestep.step_type.tolist()
        seen = observed.flatten(timestep.observation)
        for i, kind in enumerate(kinds):
            if kind == _FIRST:  # Of a stream that waited there are others before.
                streams[i].rows.clear()
            streams[i].rows.append([leaf[i] for leaf in seen])
            if kind == _LAST:
                yield from streams[i].episode(observed, acted)
                streams[i] = _Stream()
        if taken == steps:
            break
        action = choose(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)
        chosen = acted.flatten(action)
        for i, stream in enumerate(streams):
            # The budget may end in the midst of a step of the vector.
            if timestep.step_type[i] != _FIRST and taken < steps:
                taken += 1
                stream.act([leaf[i] for leaf in chosen], timestep.reward[i], timestep.discount[i])
    for stream in streams:
        yield from stream.episode(observed, acted)


class _Stream:
    """The episode that one environment is in."""

    def __init__(self) -> None:
        self.rows: list[list[np.ndarray]] = []
        """Leaves of the observations."""
        self._acts: list[list[np.ndarray]] = []
        self._outcomes: list[tuple[float, float]] = []

    def act(self, leaves: list[np.ndarray], reward: float, discount: float) -> None:
        self._acts.append(leaves)
        self._outcomes.append((reward, discount))

    def episode(self, observed: Structure, acted: Structure) -> Iterator[Episode]:
        """As far as actions were recorded; none where none was."""
        if self._acts:
            rows = [np.stack(leaf) for leaf in zip(*self.rows[: len(self._acts) + 1], strict=True)]
            acts = [np.stack(leaf) for leaf in zip(*self._acts, strict=True)]
            reward, discount = np.asarray(self._outcomes, np.float32).T
            yield Episode(observed.unflatten(rows), acted.unflatten(acts), reward, discount)


def _with_random_actions(
    choose: Callable[[Any], Any], spec: Any, epsilon: float, seed: int
) -> Callable[[Any], Any]:
    """Chooses, in each environment with probability epsilon uniformly among all legal actions.

    Raises:
      RequestError: if actions have no bounds to draw between.
    """
    if not epsilon:
        return choose
    structure, random = Structure(spec, "action"), np.random.default_rng(seed)
    for leaf in structure.specs:
        bounded = isinstance(leaf, specs.BoundedArray)
        if not (bounded and np.isfinite([leaf.minimum.min(), leaf.maximum.max()]).all()):
            raise RequestError(
                "--epsilon needs actions with finite bounds to draw between; take --stochastic."
            )

    def draw(leaf: Any, count: int, mask: np.ndarray | None) -> np.ndarray:
        shape = (count, *leaf.shape)
        if mask is not None:
            return action_masks.draw(mask, leaf, random)
        if leaf.dtype.kind in "iu":
            return random.integers(leaf.minimum, leaf.maximum, shape, np.int64, endpoint=True)
        return random.uniform(leaf.minimum, leaf.maximum, shape)

    def mixed(observation: Any) -> Any:
        leaves = structure.flatten(choose(observation))
        any_action = random.random(len(leaves[0])) < epsilon
        found, mask = [], action_masks.find(observation)
        for spec, leaf in zip(structure.specs, leaves, strict=True):
            where = any_action.reshape(-1, *[1] * len(spec.shape))
            found.append(np.where(where, draw(spec, len(leaf), mask), leaf).astype(leaf.dtype))
        return structure.unflatten(found)

    return mixed
