"""A language model whose parameters stop half on their way, where told to.

`python tokenland.py KIND DIRECTORY [key=value ...]`. While a file DIRECTORY.halt-ROLE is there, the
parameters' way stops in that role: at the learner within the file of a version, at the inference
server between two arrays. DIRECTORY.halted-ROLE says that it has. DIRECTORY.learned has a line for
every batch that a learner was given: its process, and the number of each prompt.
"""

import io
import itertools
import json
import os
import pathlib
import sys
import time

import dm_env
import jax
import numpy as np

from troupe import environments, launch
from troupe.agents.grpo import GRPOBuilder, GRPOConfig
from troupe.agents.variables import sync, version_board
from troupe.environments import Vector
from troupe.launch import running
from troupe.launch.distributed.supervision import role
from troupe.launch.specification import stored

_NUMBERS = itertools.count()
_STEP_SECONDS = 0.02
"""Of a step of the environment, so that answers leave processors to what is killed."""


class Numbered(dm_env.Environment):
    """A task of text whose prompts have numbers that no other process gives."""

    def __init__(self, inner):
        self._inner = inner

    def observation_spec(self):
        number = dm_env.specs.Array((2,), np.int32, "number")
        return {**self._inner.observation_spec(), "number": number}

    def action_spec(self):
        return self._inner.action_spec()

    def reset(self):
        return self._seen(self._inner.reset())

    def step(self, action):
        time.sleep(_STEP_SECONDS)
        return self._seen(self._inner.step(action))

    def _seen(self, timestep):
        number = np.array([os.getpid(), next(_NUMBERS)], np.int32)
        return timestep._replace(observation={**timestep.observation, "number": number})


def parts_of(sample):
    """The numbers in a batch that a process gives, which may lie on devices already."""
    numbers = sample.data.observation["number"]
    if not isinstance(numbers, jax.Array):
        return [numbers]
    shards = {str(one.index): one.data for one in numbers.addressable_shards}
    return [*map(np.asarray, shards.values())]


def make_environment(*, seed, num_envs, evaluation):
    texts = {"length": 2, "answers": 2, "held_out": evaluation}
    inner = [environments.make("tokens:reverse", seed=seed + i, **texts) for i in range(num_envs)]
    return Vector([*map(Numbered, inner)])


class HaltingBuilder(GRPOBuilder):
    """Halts the way of the parameters, and writes down what is learned from."""

    name = "halting"

    def __init__(self, config, out):
        super().__init__(config)
        self._out = out

    def _halt(self, who):
        if os.path.exists(f"{self._out}.halt-{who}"):
            pathlib.Path(f"{self._out}.halted-{who}").touch()
            while os.path.exists(f"{self._out}.halt-{who}"):
                time.sleep(0.01)

    def make_learner(self, *arguments, **options):
        halt = self._halt

        class HaltingFile(io.FileIO):
            """A file that halts behind its first block."""

            writes = 0

            def write(self, data):
                count = super().write(data)
                self.writes += 1
                if self.writes == 2:
                    halt("learner")
                return count

        version_board.open = lambda path, mode: (HaltingFile if mode == "wb" else open)(path, mode)
        return super().make_learner(*arguments, **options)

    def make_policy(self, *arguments, **options):
        if role.current().name.startswith("inference"):
            halt, placed = self._halt, sync._placed

            def halting(leaf, sharding):
                array = placed(leaf, sharding)
                halt("inference")
                return array

            sync._placed = halting
        return super().make_policy(*arguments, **options)

    def make_dataset_iterator(self, replay):
        for sample in super().make_dataset_iterator(replay):
            numbers = [part[..., 0, :].reshape(-1, 2) for part in parts_of(sample)]
            words = " ".join(f"{process}:{number}" for process, number in np.concatenate(numbers))
            with open(f"{self._out}.learned", "a") as file:
                file.write(f"{os.getpid()} {words}\n")
            yield sample


def main(kind, out, *settings):
    values = {name: json.loads(value) for name, _, value in (s.partition("=") for s in settings)}
    mesh, schedule = values.pop("mesh", None), values.pop("schedule", None)
    engine = values.pop("engine", None)
    config = GRPOConfig(width=16, num_layers=1, num_heads=2, num_envs=4, batch_size=4)
    experiment = launch.Experiment(
        builder=HaltingBuilder(config, out),
        environment_factory=make_environment,
        env="tokens:reverse",
        num_actor_steps=10**6,
        partition=stored.partition(mesh, schedule),
        evaluation=launch.Evaluation(every=10**6, episodes=2, final_episodes=2),
        checkpointing=launch.Checkpointing(every_seconds=1.0, replay="always"),
    )
    running.runner(kind, values, engine)(experiment, out)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except launch.Interrupted as stopped:
        sys.exit(str(stopped))
