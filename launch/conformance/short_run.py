"""Checks of all that every agent must do, by short runs in this process.

`troupe check` runs these for one agent, the suite's table of conformance for all there are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from ...agents.replay.items import Rollouts, Sample
from ..experiment import Experiment
from ..local import components
from ..local.loop import CatchUp, LearningLoop, Loop
from ..mistakes import Mistake, attempt, compare, draws
from ..signals import Stop
from ..validation import policies

if TYPE_CHECKING:
    from ...agents.interfaces import ManagedLearner
    from ...environments import Vector

Nest = Any
_COMPILING = 10.0
"""The factor by which a run may take longer before its first gradient step: all is compiled."""


class ShortRun:
    """The parts of an experiment in this process, for a short run.

    Attributes:
      experiment: what is run.
      parts: those that a run in one process would have.
      loop: of acting and learning.
    """

    def __init__(self, experiment: Experiment, most_seconds: float = 60.0):
        """Makes everything; nothing is stepped yet.

        Args:
          experiment: what is run.
          most_seconds: of a `run` that is to come to so many gradient steps; it ends with fewer.
            Until its first gradient step it has ten times as long.
        """
        builder = copy.copy(experiment.builder)
        make = builder.make_dataset_iterator
        self._newest: Sample | None = None
        self._repeat, self._most_seconds = False, most_seconds
        # Set on this one builder: what it gives is as any other's, and can be given again.
        builder.make_dataset_iterator = lambda replay: self._fed(make(replay))  # type: ignore
        self.experiment = dataclasses.replace(experiment, builder=builder)
        environment = components.make_environment(self.experiment, 0)
        self.parts = components.make(self.experiment, environment)
        self.loop = self._loop()
        self._start = copy.deepcopy(self._saved())

    def __enter__(self) -> ShortRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.parts.replay.close()
        self.parts.environment.close()

    def run(self, gradient_steps: float = math.inf) -> ShortRun:
        """Spends the budget, or less where so many gradient steps are taken before."""
        learner, loop, budget = self.parts.learner, self.loop, self.experiment.budget
        if gradient_steps == math.inf:
            return self.run_to(budget)
        began = time.perf_counter()
        while learner.steps < gradient_steps and loop.steps < budget:
            patience = self._most_seconds * (1.0 if learner.steps else _COMPILING)
            if time.perf_counter() - began >= patience:
                break
            self.run_to(loop.steps + 1)
        return self

    def run_to(self, steps: float) -> ShortRun:
        """Goes on to so many steps of the loop, whatever time that takes."""
        self.loop.advance(steps, math.inf, Stop())
        return self

    def rewind(self) -> ShortRun:
        """Puts everything where it was before its first step."""
        self.parts.environment.close()
        environment = components.make_environment(self.experiment, 0)
        self.parts = dataclasses.replace(self.parts, environment=environment)
        for name, state in copy.deepcopy(self._start).items():
            getattr(self.parts, name).restore(state)
        if self.parts.actor is not None:
            self.parts.actor.update(wait=True)
        self.loop = self._loop()
        return self

    def policy(self) -> Nest:
        """A copy of what actors get."""
        return jax.tree.map(np.array, self.parts.learner.get_variables(["policy"])[0])

    def _loop(self) -> Loop | LearningLoop:
        parts, size = self.parts, self.experiment.builder.steps_per_dispatch
        if parts.actor is None:
            return LearningLoop(parts.learner)
        catch_up = CatchUp(parts.learner.step, parts.replay, size)
        return Loop(parts.environment, parts.actor, catch_up)

    def _saved(self) -> dict[str, Nest]:
        """By name of a part; nobody acts where there is data."""
        parts = {name: getattr(self.parts, name) for name in ("learner", "actor", "replay")}
        return {name: part.save() for name, part in parts.items() if part is not None}

    @property
    def newest(self) -> Sample:
        """The batches that the learner had last, every array [K, B, ...]."""
        assert self._newest is not None, "the learner has taken no step"
        return self._newest

    def step_again(self) -> None:
        """Has the learner step on the batch that it had last."""
        self._repeat = True
        self.parts.learner.step()
        self._repeat = False

    def _fed(self, batches: Iterator[Sample]) -> Iterator[Sample]:
        while True:
            if not self._repeat or self._newest is None:
                self._newest = next(batches)
            yield self._newest


def shortened(experiment: Experiment, spec: Any) -> tuple[Experiment, int]:
    """An experiment whose learner begins after a few steps and takes few of them.

    Returns:
      The experiment, and how many gradient steps to wait for.
    """
    builder = copy.copy(experiment.builder)
    if builder.steps_per_dispatch > 2:
        builder.config = dataclasses.replace(builder.config, steps_per_dispatch=2)
    size = builder.steps_per_dispatch
    steps = 4 * size
    if not experiment.acts:
        return dataclasses.replace(experiment, builder=builder, num_learner_steps=steps), steps
    replay = builder.make_replay_spec(spec)
    if isinstance(replay.item, Rollouts):
        return dataclasses.replace(experiment, builder=builder, num_actor_steps=10**6), 2 * size
    drawn = replay.batch_size * size
    small = dataclasses.replace(
        replay,
        min_size=min(replay.min_size, 16),
        max_size=max(min(replay.max_size, 1_000), replay.batch_size),
        samples_per_insert=None if replay.samples_per_insert is None else drawn / 4,
        tolerance=None,
    )
    builder.make_replay_spec = lambda spec: small  # type: ignore[method-assign]
    return dataclasses.replace(experiment, builder=builder, num_actor_steps=20_000), steps


def check_actions(trial: ShortRun) -> str:
    """Checks that both policies choose actions that the environment takes.

    Raises:
      Mistake: where they do not.
    """
    count = 0
    for evaluation, which in ((False, "exploring"), (True, "evaluation")):
        with components.make_environment(trial.experiment, 1) as environment:
            count += _check_actions(trial, environment, which, evaluation)
    return f"{count} of both policies, all within their spec"


def _check_actions(trial: ShortRun, environment: Vector, which: str, evaluation: bool) -> int:
    """Checks those of one policy; how many they were."""
    parts, builder, n = trial.parts, trial.experiment.builder, environment.num_envs
    networks = trial.experiment.make_networks(parts.spec)
    core = builder.make_policy(networks, parts.spec, evaluation=evaluation, num_streams=n)
    actor: Any = builder.make_actor(jax.random.key(0), core, parts.spec, parts.learner, num_envs=n)
    timestep = environment.reset()
    actor.observe_first(timestep)
    before, steps = actor.save(), 8
    for _ in range(steps):
        action = attempt(
            f"the {which} policy cannot choose actions", actor.select_action, timestep.observation
        )
        strict = builder.actions == "strict"
        policies.check_actions(action, parts.spec.actions, which, strict=strict)
        policies.check_legal(action, parts.spec.actions, timestep.observation, which)
        refusal = f"the environment refuses an action of the {which} policy"
        timestep = attempt(refusal, environment.step, action)
        actor.observe(action, timestep)
    one = jax.tree.map(lambda x: x[0], timestep.observation)
    params = parts.learner.get_variables(["policy"])[0]
    if draws(core.select_action, params, one, jax.eval_shape(core.init, jax.random.key(0))):
        policies.check_fresh(before, actor.save(), which)
    return steps * n


def check_learns(trial: ShortRun, gradient_steps: float) -> str:
    """Checks that a short run takes gradient steps that change what actors get, all finite.

    Raises:
      Mistake: where it does not.
    """
    learner = trial.parts.learner
    before = trial.policy()
    attempt("a short run fails", trial.run, gradient_steps)
    if learner.steps == 0:
        raise Mistake(
            f"the learner took no step in {trial.loop.actor_steps:,} actor steps: its replay held "
            f"{len(trial.parts.replay)} items. Look at min_size and batch_size of the replay spec."
        )
    check_finite(learner)
    after = learner.get_variables(["policy"])[0]
    if all(jax.tree.leaves(jax.tree.map(_same, before, after))):
        raise Mistake(
            f'the variables "policy" did not change in {learner.steps} gradient steps: does '
            "Update.step return the new params, and Update.variables those?"
        )
    return f"{trial.loop.actor_steps:,} actor steps, {learner.steps} gradient steps, all finite"


def check_finite(learner: ManagedLearner) -> None:
    """Raises Mistake where a metric or a variable of a learner is not finite."""
    for name, value in learner.metrics().items():
        if not math.isfinite(value):
            raise Mistake(
                f"the metric {name!r} is {value} after {learner.steps} gradient steps: look for "
                "a division by 0, a logarithm or a root of 0 (their gradients too), a learning "
                "rate too large."
            )
    names = learner.variable_names
    for name, nest in zip(names, learner.get_variables(names), strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(nest)[0]:
            if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf)).all():
                raise Mistake(
                    f"{name}{jax.tree_util.keystr(path)} is not finite after {learner.steps} "
                    "gradient steps: look for a division by 0, a logarithm or a root of 0 (their "
                    "gradients too), a learning rate too large."
                )


def check_same_step(trial: ShortRun) -> str:
    """Checks that the same batch changes the same state in the same way.

    Raises:
      Mistake: where it does not, naming what differs.
    """
    learner = trial.parts.learner
    before = jax.tree.map(np.array, learner.save())
    trial.step_again()
    first = jax.tree.map(np.array, learner.save())
    learner.restore(before)
    trial.step_again()
    second = jax.tree.map(np.array, learner.save())
    for (path, one), other in zip(
        jax.tree_util.tree_flatten_with_path(first)[0], jax.tree.leaves(second), strict=True
    ):
        if not _same(one, other):
            raise Mistake(
                "Update.step is not pure: from the same state and batch it came to another "
                f"{jax.tree_util.keystr(path)}. Keep all that changes in the state, and draw "
                "random numbers with jax.random from a key that the state holds."
            )
    return "the same batch and state give the same, bit by bit"


def check_seeds(one: Nest, again: Nest, other: Nest) -> str:
    """Checks that equal seeds give equal parameters and others do not.

    Args:
      one: what a short run came to (`ShortRun.policy`).
      again: likewise, of the same seed.
      other: likewise, of another seed.

    Raises:
      Mistake: where they do not.
    """
    first, second, third = map(jax.tree.leaves, (one, again, other))
    if not all(map(_same, first, second)):
        raise Mistake(
            "two runs of one seed came to other parameters: something draws random numbers that "
            "do not follow from the seed. Use the keys and seeds that are given."
        )
    if all(map(_same, first, third)):
        raise Mistake(
            "runs of two seeds came to the same parameters: use the key that Update.init is given."
        )
    return "a seed repeats bit by bit, and another differs"


def check_restored(saved: ShortRun, restored: ShortRun) -> str:
    """Checks that a learner that takes over what another saved acts like it.

    Raises:
      Mistake: where it does not.
    """
    state = jax.tree.map(np.array, saved.parts.learner.save())
    attempt("what the learner saved cannot be restored", restored.parts.learner.restore, state)
    ours, theirs = (t.parts.learner.get_variables(["policy"])[0] for t in (saved, restored))
    compare("what a restored learner gives to actors", theirs, ours, "Save all of the state.")
    if saved.parts.learner.steps != restored.parts.learner.steps:
        raise Mistake("a restored learner counts other gradient steps than the one that was saved.")
    timestep = saved.parts.environment.reset()
    actions = [jax.tree.leaves(_judged(trial, timestep)) for trial in (saved, restored)]
    if not all(map(_same, *actions)):
        raise Mistake(
            "a restored learner acts otherwise than the one that was saved: Update.variables must "
            "follow from the state alone."
        )
    return "a restored learner acts like the one that was saved"


def _judged(trial: ShortRun, timestep: dm_env.TimeStep) -> Nest:
    """The actions of the evaluation policy."""
    parts, builder = trial.parts, trial.experiment.builder
    networks = trial.experiment.make_networks(parts.spec)
    core = builder.make_policy(networks, parts.spec, evaluation=True)
    n = parts.environment.num_envs
    actor = builder.make_actor(jax.random.key(0), core, parts.spec, parts.learner, num_envs=n)
    actor.observe_first(timestep)
    return actor.select_action(timestep.observation)


def _same(one: Any, other: Any) -> bool:
    """True if two arrays have the same bits."""
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()
