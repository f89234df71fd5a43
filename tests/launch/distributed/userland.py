"""What a user writes outside of the package: an agent, environments, and a launch of them.

`python userland.py KIND DIRECTORY [key=value ...]` runs it and ends with the exit code of the run.
What waits until it is told waits for a file, DIRECTORY.told.
"""

import dataclasses
import json
import os
import pathlib
import sys
import time

import dm_env
import jax
import numpy as np

from troupe import agents, environments, launch
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.environments import Vector, fakes
from troupe.launch import running
from troupe.launch.logging import report
from troupe.launch.specification import stored


@dataclasses.dataclass(frozen=True)
class QuietConfig(DQNConfig):
    """DQN whose exploration ends at once."""

    quiet: bool = True
    """Whether it does."""


class QuietBuilder(DQNBuilder):
    """A subclass of a builder, as the README shows one."""

    name = "quiet"
    config_class = QuietConfig

    def make_policy(self, networks, spec, *, evaluation=False, num_streams=1):
        return super().make_policy(
            networks, spec, evaluation=evaluation or self.config.quiet, num_streams=num_streams
        )


class MortalBuilder(QuietBuilder):
    """The same, whose learner fails once it is told to."""

    def __init__(self, config, told):
        super().__init__(config)
        self._told = told

    def make_learner(self, *arguments, **options):
        learner = super().make_learner(*arguments, **options)
        step = learner.step

        def step_until_told():
            if os.path.exists(self._told):
                raise RuntimeError("out of memory on the device")
            step()

        learner.step = step_until_told
        return learner


class Unhurried:
    """A vector of environments that takes its time until it is told to hurry.

    So no budget is spent before a test is done with what must be running, however fast the machine.
    """

    FREE_STEPS, SECONDS = 100, 0.25

    def __init__(self, inner, told):
        self._inner, self._told, self._free = inner, told, self.FREE_STEPS

    def step(self, action):
        if self._free == 0 and not os.path.exists(self._told):
            time.sleep(self.SECONDS)
        else:
            self._free = max(0, self._free - 1)
        return self._inner.step(action)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._inner.close()

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Trouble(dm_env.Environment):
    """A fake in which something goes wrong after some steps, once it is told so.

    Every step takes `step_ms` milliseconds at the least.
    """

    def __init__(self, what, after, told, seed, step_ms):
        lengths = (10**9,) if what == "endless" else (10,)
        self._inner = fakes.discrete(seed=seed, step_ms=step_ms, episode_lengths=lengths)
        self._what, self._left, self._told = what, after, told

    def reset(self):
        return self._inner.reset()

    def step(self, action):
        timestep = self._inner.step(action)
        self._left -= 1
        if self._left >= 0 or not os.path.exists(self._told):
            return timestep
        if self._what == "raises":
            raise RuntimeError("the simulator is on fire")
        if self._what == "hangs":
            time.sleep(1000)
        if self._what == "nan":
            return timestep._replace(reward=np.float32("nan"))
        return timestep

    def observation_spec(self):
        return self._inner.observation_spec()

    def action_spec(self):
        return self._inner.action_spec()


def make_environment(what, told, step_ms, *, seed, num_envs, evaluation):
    if what in ("cartpole", "unhurried"):
        made = environments.make("CartPole-v1", seed=seed, num_envs=num_envs)
        return made if evaluation or what == "cartpole" else Unhurried(made, told)
    what = "fine" if evaluation else what
    return Vector([Trouble(what, 60, told, seed + i, step_ms) for i in range(num_envs)])


class AstrayBuilder(QuietBuilder):
    """The same, whose learner begins with other parameters in every process."""

    def make_learner(self, key, *arguments, **options):
        key = jax.random.fold_in(key, jax.process_index())
        return super().make_learner(key, *arguments, **options)


def experiment(
    told,
    what="cartpole",
    steps=1200,
    evaluate=None,
    num_envs=2,
    step_ms=1.0,
    replay="always",
    every=1.0,
    spi=2.0,
    least=16,
    mortal=False,
    astray=False,
    mesh=None,
    schedule=None,
    **checkpointing,
):
    config = QuietConfig(
        hidden_sizes=(8,),
        batch_size=4,
        min_replay_size=least,
        max_replay_size=2_400,
        samples_per_insert=spi,
        steps_per_dispatch=2,
        num_envs=num_envs,
    )
    if mortal:
        builder = MortalBuilder(config, told)
    else:
        builder = (AstrayBuilder if astray else QuietBuilder)(config)
    return launch.Experiment(
        builder=builder,
        environment_factory=lambda **which: make_environment(what, told, step_ms, **which),
        env=what,
        num_actor_steps=steps,
        partition=stored.partition(mesh, schedule),
        evaluation=launch.Evaluation(
            every=evaluate or max(1, steps // 3), episodes=2, final_episodes=3
        ),
        checkpointing=launch.Checkpointing(every_seconds=every, replay=replay, **checkpointing),
    )


def main(kind, out, *settings):
    values = {name: json.loads(value) for name, _, value in (s.partition("=") for s in settings)}
    resume = values.pop("resume", False)
    names = [field.name for field in dataclasses.fields(launch.Roles)]
    roles = {name: values.pop(name) for name in names if name in values}
    engine = values.pop("engine", None)
    made = experiment(told=f"{out}.told", **values)
    reporter = report.Plain(sys.stdout, seconds=1.0)
    if kind == "one-process":
        launch.run(made, out, resume=resume, reporter=reporter)
    elif "ray" in (kind, engine):
        running.runner(kind, roles, engine)(made, out, resume=resume, reporter=reporter)
    else:
        program = launch.make_program(made, out, resume=resume, **roles)
        launch.launch(program, kind, reporter=reporter)
    assert json.loads((pathlib.Path(out) / "result.json").read_text())["agent"] == agents_name()


def agents_name():
    assert issubclass(QuietBuilder, agents.Builder)
    return QuietBuilder.name


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except launch.Interrupted as stopped:
        sys.exit(str(stopped))
    except (launch.RunError, launch.RequestError) as error:
        print(f"troupe: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, launch.RequestError) else 1)
