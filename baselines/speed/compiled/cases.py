"""Settings, experiments and loops that the benchmarks of compiled runs train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .... import environments
from ....agents import find_builder
from ....agents.builder import Builder
from ....agents.interfaces import ActorCore, Update
from ....agents.programs.whole_loop import LoopState, WholeLoop
from ....agents.replay.device import DeviceReplay
from ....environments import functional
from ....launch import Callback, Checkpointing, Evaluation, Experiment
from ....launch.compiled.layout import Layout
from ....launch.compiled.program import LoopProgram
from ...settings.dqn import CARTPOLE_ZOO

MOST_STEPS = 2**31 - 1


class CompiledCase(NamedTuple):
    """An agent with its config. Every case learns CartPole unless another task is named."""

    agent: str
    config: Mapping[str, Any]

    def builder(self) -> Builder:
        """Returns the agent's builder, with the config."""
        builder_class = find_builder(self.agent)
        return builder_class(builder_class.config_class(**self.config))


def ppo(num_envs: int, rollout_length: int, **changes: Any) -> CompiledCase:
    """PPO with the settings of PureJaxRL: two MLPs of 64 x 64, 4 epochs, 4 minibatches."""
    config = {
        "num_envs": num_envs,
        "rollout_length": rollout_length,
        "num_epochs": 4,
        "num_minibatches": 4,
        "gae_lambda": 0.95,
        "discount": 0.99,
        "clip": 0.2,
        "entropy_cost": 0.01,
        "learning_rate": 2.5e-4,
        **changes,
    }
    return CompiledCase("ppo", config)


_DQN = {
    "double": False,
    "hidden_sizes": (120, 84),
    "batch_size": 128,
    "max_replay_size": 10_000,
    "min_replay_size": 1_000,
    "samples_per_insert": 12.8,
    "target_update_period": 50,
    "learning_rate": 2.5e-4,
    "epsilon_end": 0.05,
    "epsilon_decay_steps": 250_000,
}
CASES: dict[str, CompiledCase] = {
    "ppo-4x128": ppo(4, 128),
    "ppo-256x32": ppo(256, 32),
    "dqn-1": CompiledCase("dqn", {**_DQN, "num_envs": 1}),
    "dqn-10": CompiledCase("dqn", {**_DQN, "num_envs": 10}),
    "dqn-zoo": CompiledCase("dqn", {**CARTPOLE_ZOO, "double": False}),
}
"""By name. DQN learns as CleanRL's does, with one environment, and PureJaxRL's, with ten: from a
batch of 128 for every ten env steps. The zoo's learns half a gradient step of 256 x 256 units to an
env step."""


def experiment(
    case: CompiledCase,
    env: str,
    callbacks: Sequence[Callback] = (),
    *,
    steps: int = MOST_STEPS,
    checkpoint_seconds: float = 60.0,
    one_by_one: bool = False,
) -> Experiment:
    """Returns a run without evaluations on the way.

    Args:
      case: what learns.
      env: id of the task.
      callbacks: of the run.
      steps: its budget.
      checkpoint_seconds: between checkpoints.
      one_by_one: environments are stepped one after another, also where Gymnasium can step them as
        one.
    """
    builder = case.builder()

    def make(*, seed: int, num_envs: int, evaluation: bool) -> environments.Vector:
        if one_by_one:
            seeds = range(seed, seed + num_envs)
            return environments.Vector(
                [environments.make(env, seed=one, actions=builder.actions) for one in seeds]
            )
        return environments.make(env, seed=seed, num_envs=num_envs, actions=builder.actions)

    return Experiment(
        builder,
        make,
        env,
        steps,
        evaluation=Evaluation(every=MOST_STEPS, episodes=1, final_episodes=1, num_envs=1),
        checkpointing=Checkpointing(every_seconds=checkpoint_seconds),
        callbacks=callbacks,
    )


class LoopAlone(NamedTuple):
    """The program of a loop by itself, without runs around it."""

    program: LoopProgram
    state: LoopState
    keys: jax.Array
    """Of the draws from the replay, of each run"""
    environment: functional.FunctionalEnvironment
    policy: ActorCore
    update: Update
    replay: DeviceReplay
    num_envs: int

    def advance(self, state: LoopState, turns: int) -> LoopState:
        """Goes on with a state, which is donated, for so many turns."""
        until = np.full(self.keys.shape, MOST_STEPS)
        return self.program.advance(state, self.keys, until, turns)[0]


def alone(
    case: CompiledCase,
    env: str,
    *,
    num_runs: int | None = None,
    replay_class: type[DeviceReplay] = DeviceReplay,
    change_update: Callable[[Update], Update] = lambda update: update,
) -> LoopAlone:
    """Builds the loop of a case, on jax's first device.

    Args:
      case: what learns.
      env: id of the task, `jax:...`.
      num_runs: S, runs of different seeds; None: one, whose arrays have no leading dimension.
      replay_class: the replay, or one with a part left out.
      change_update: returns the update that is compiled in place of the builder's.
    """
    builder = case.builder()
    n, k = builder.num_envs, builder.steps_per_dispatch
    vector = environments.make(env, seed=0, num_envs=1, actions=builder.actions)
    spec = environments.make_spec(vector)
    environment = functional.make(env, actions=builder.actions)
    networks = builder.make_networks(spec)
    policy = builder.make_policy(networks, spec, num_streams=n)
    extras = builder.make_extras_spec(policy)
    replay = replay_class(
        builder.make_replay_spec(spec), spec, extras, num_envs=n, steps_per_sample=k
    )
    update = change_update(builder.make_update(networks, spec))

    def make(settings: Any, axis: str | None) -> WholeLoop:
        del settings  # All runs have the same.
        return WholeLoop(environment, policy, update, replay, k, axis)

    program = LoopProgram(make, {}, num_runs, Layout(jax.devices()[0]))
    runs = () if num_runs is None else (num_runs,)
    streams, actor, learner, draws = jax.random.split(jax.random.key(0), 4)
    keys = [jax.random.split(key, runs) for key in (actor, learner, draws)]
    state = program.init(jax.random.split(streams, (*runs, n)), *keys[:2])
    return LoopAlone(program, state, keys[2], environment, policy, update, replay, n)
