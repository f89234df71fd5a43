"""Episodes to play into a replay, Reverb's among them, and what was drawn of it as numbers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import dm_env
import jax
import numpy as np
from dm_env import StepType, specs

from troupe.agents.replay import (
    ReplaySpec,
    Rollouts,
)
from troupe.agents.replay.device import DeviceReplay
from troupe.agents.replay.served import ServedReader, ServedWriter, SharedReplay
from troupe.environments.specs import EnvironmentSpec

SPEC = EnvironmentSpec(
    observations=specs.Array((2,), np.float32, "observation"),
    actions=specs.Array((), np.int32, "action"),
    rewards=specs.Array((), np.float32, "reward"),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0, "discount"),
)
EXTRAS = {"log_prob": specs.Array((), np.float32, "log_prob")}


@dataclasses.dataclass(frozen=True)
class Episode:
    """Observations are `first`, `first + 1`, ...; the action equals the observation, the extra is
    minus it."""

    first: int
    rewards: tuple[float, ...]
    terminates: bool = True


@dataclasses.dataclass(frozen=True)
class Wait:
    """Rows in which a stream waits for the next episode."""

    rows: int


ONE = Episode(first=0, rewards=(1.0, 2.0, 3.0, 4.0))
TWO = Episode(first=10, rewards=(5.0, 6.0), terminates=False)


def timesteps(episode: Episode | Wait) -> list[dm_env.TimeStep]:
    """The time steps of one environment; rewards of FIRST as a vector has them."""
    if isinstance(episode, Wait):
        nothing = np.full(2, 77, np.float32)
        row = dm_env.TimeStep(np.int32(0), np.float32(0), np.float32(0), nothing)
        return [row] * episode.rows
    last = len(episode.rewards)
    return [
        dm_env.TimeStep(
            step_type=np.int32(
                StepType.FIRST if t == 0 else StepType.LAST if t == last else StepType.MID
            ),
            reward=np.float32(episode.rewards[t - 1] if t else 0.0),
            discount=np.float32(0.0 if t == last and episode.terminates else 1.0),
            observation=np.full(2, episode.first + t, np.float32),
        )
        for t in range(last + 1)
    ]


def act(observation: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    action = observation[..., 0].astype(np.int32)
    return action, {"log_prob": -action.astype(np.float32)}


def play_one(adder: Any, *episodes: Episode) -> None:
    """As acme's `EnvironmentLoop` does with one environment."""
    for episode in episodes:
        rows = timesteps(episode)
        adder.add_first(rows[0])
        for before, timestep in itertools.pairwise(rows):
            action, extras = act(before.observation)
            adder.add(action, timestep, extras)


def play_vector(adder: Any, *streams: list[Episode | Wait]) -> None:
    """Streams side by side, until the shortest is over."""
    rows = [[t for episode in stream for t in timesteps(episode)] for stream in streams]
    shortest = min(map(len, rows))
    joined = [
        dm_env.TimeStep(*(np.stack(field) for field in zip(*row, strict=True)))
        for row in zip(*(row[:shortest] for row in rows), strict=True)
    ]
    adder.add_first(joined[0])
    for before, timestep in itertools.pairwise(joined):
        action, extras = act(before.observation)
        adder.add(action, timestep, extras)


class ServedReplay:
    """A Reverb server with its adder and its reader, which begins to read when it is asked to."""

    def __init__(
        self, spec: ReplaySpec, num_envs: int | None, environment_spec: EnvironmentSpec
    ) -> None:
        import reverb

        from troupe.agents.replay import reverb as replay

        self._server = reverb.Server(replay.make_tables(spec, environment_spec, EXTRAS))
        self._arguments = spec, environment_spec, EXTRAS, f"127.0.0.1:{self._server.port}"
        self._client = reverb.Client(self._arguments[-1])
        self._make_reader = replay.ReverbReplay
        self._adder = replay.ReverbAdder(*self._arguments, num_envs=num_envs)
        self._reader = None
        self._taken = 0
        self._batch_size = spec.batch_size
        if isinstance(spec.item, Rollouts):  # Its queue is short: writers wait for a reader.
            self._read()

    def adder(self):
        return self._adder

    def flush(self) -> None:
        self._adder.flush()

    def _info(self):
        return self._client.server_info()["replay"]

    def __len__(self) -> int:
        self._adder.flush()
        return self._info().current_size

    @property
    def inserted(self) -> int:
        return self._info().rate_limiter_info.insert_stats.completed

    def can_insert(self) -> bool:
        return True

    def can_sample(self) -> bool:
        return self.inserted >= (self._taken + 1) * self._batch_size

    def _read(self) -> None:
        self._reader = self._make_reader(*self._arguments)

    def sample_shapes(self):
        return self._make_reader.sample_shapes(self._reader)

    def sample(self):
        if self._reader is None:
            self._adder.flush()
            self._read()
        self._taken += 1
        return self._reader.sample()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._adder.close()
        self._server.stop()


def items_of(replay: Any, count: int) -> list[tuple]:
    """All items held, found by drawing until each was seen, in the order of their contents."""
    found: dict[int, tuple] = {}
    for _ in range(200):
        sample = replay.sample()
        for i, key in enumerate(sample.info.keys):
            found[int(key)] = contents(sample.data, i)
        if len(found) >= count:
            break
    assert len(found) == count == len(replay)
    return sorted(found.values())


def contents(data: Any, i: int) -> tuple:
    """One item of a batch as plain numbers; of observations the first element."""
    numbers = {name: np.asarray(value)[i].tolist() for name, value in plain(data).items()}
    return tuple(tuple(value) if isinstance(value, list) else value for value in numbers.values())


def plain(data: Any) -> dict[str, np.ndarray]:
    fields = data._asdict()
    extras = fields.pop("extras")
    for name in ("observation", "next_observation"):
        if name in fields:
            np.testing.assert_array_equal(fields[name][..., 0], fields[name][..., 1])
            fields[name] = fields[name][..., 0]
    return {**fields, "extras": extras["log_prob"]}


class ChunkedReplay:
    """A shared replay with one writer and a reader, which begins to read when it is asked to."""

    def __init__(
        self, spec: ReplaySpec, num_envs: int | None, environment_spec: EnvironmentSpec
    ) -> None:
        arguments = spec, environment_spec, EXTRAS
        self._batch_size = spec.batch_size
        self._shared = SharedReplay(*arguments, num_envs=num_envs)
        self._writer = ServedWriter(*arguments, self._shared, num_envs=num_envs)
        self._arguments = *arguments, self._shared
        self._reader: ServedReader | None = None
        self._taken = 0
        if isinstance(spec.item, Rollouts):  # Writers wait for a reader.
            self._read()

    def adder(self):
        return self._writer.adder()

    def flush(self) -> None:
        self._writer.flush()

    def __len__(self) -> int:
        self.flush()
        return self._shared.numbers()[0]

    @property
    def inserted(self) -> int:
        self.flush()
        return self._shared.inserted

    def can_insert(self) -> bool:
        return True

    def can_sample(self) -> bool:
        if self._reader is None:
            return True
        # Each rollout is learned from once: so the reader has a batch, or will have one at once.
        return self.inserted >= (self._taken + 1) * self._batch_size and self._reader.wait(60.0)

    def _read(self) -> None:
        self._reader = ServedReader(*self._arguments)

    def sample_shapes(self):
        return self._shared.sample_shapes()

    def sample(self):
        if self._reader is None:
            self.flush()
            self._read()
        self._taken += 1
        return self._reader.sample()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._writer.close()


class DeviceReplayOnHost:
    """A replay on a device with the methods of the others, to be written and read step by step.

    Serves as its own adder. With `num_envs` None its one stream has no dimension.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        num_envs: int | None,
        environment_spec: EnvironmentSpec = SPEC,
        extras_spec: Any = EXTRAS,
    ) -> None:
        self.functions = DeviceReplay(spec, environment_spec, extras_spec, num_envs=num_envs or 1)
        self.state = jax.jit(self.functions.init)()
        names = ("add_first", "add", "sample", "update_priorities", "can_insert", "can_sample")
        self._compiled = {name: jax.jit(getattr(self.functions, name)) for name in names}
        self._one, self._specs = num_envs is None, (spec, environment_spec, extras_spec)
        self._key = jax.random.key(0)
        self._last: Any = None

    def adder(self):
        return self

    def _rows(self, nest: Any) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], nest) if self._one else nest

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        timestep = self._rows(timestep)
        if self._one and self._last is not None and self._last.step_type == StepType.LAST:
            # Of one stream every episode begins so; in a vector it is a step as any other.
            action, extras = self._answer
            self.state = self._compiled["add"](self.state, action, timestep, extras)
        else:
            self.state = self._compiled["add_first"](self.state, timestep)
        self._last = timestep

    def add(self, action: Any, timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        self._answer = self._rows((action, extras))
        timestep = self._rows(timestep)
        self.state = self._compiled["add"](self.state, self._answer[0], timestep, self._answer[1])
        self._last = timestep

    def reset(self) -> None:
        self._last = None

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def can_insert(self) -> bool:
        return bool(self._compiled["can_insert"](self.state))

    def can_sample(self) -> bool:
        return bool(self._compiled["can_sample"](self.state))

    def sample(self):
        self._key, key = jax.random.split(self._key)
        self.state, sample = self._compiled["sample"](self.state, key)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], sample)

    def sample_shapes(self):
        shapes = jax.eval_shape(self.functions.sample, self.state, self._key)[1]
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        arrays = np.asarray(keys, np.int32), np.asarray(priorities, np.float32)
        self.state = self._compiled["update_priorities"](self.state, *arrays)

    def __len__(self) -> int:
        return int(self.functions.size(self.state))

    @property
    def inserted(self) -> int:
        return int(self.state.items.next)
