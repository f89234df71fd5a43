"""The same random episodes, of several environments and with nests, in both implementations."""

from __future__ import annotations

from typing import Any

import dm_env
import jax
import numpy as np
import pytest
from dm_env import StepType, specs

from troupe.agents.replay import EmbeddedReplay, Episodes, ReplaySpec, Sequences, Transitions
from troupe.environments.specs import EnvironmentSpec, StackedArray

pytestmark = pytest.mark.distributed
reverb = pytest.importorskip("reverb")
replay_on_reverb = pytest.importorskip("troupe.agents.replay.reverb")

SPEC = EnvironmentSpec(
    observations={
        "number": specs.Array((), np.int64),
        "two": StackedArray((3, 2), np.uint8, 0, 255, stack=2, axis=-1),
        "four": StackedArray((4, 5), np.float32, 0, 255, stack=4, axis=0),
    },
    actions=(specs.Array((2,), np.float32), {"a": specs.Array((), np.int32)}),
    rewards=None,
    discounts=None,
)
EXTRAS = {"log_prob": specs.Array((), np.float32)}
STREAMS, STEPS = 3, 60


def rows_of(stream: int, generator: np.random.Generator) -> list[dm_env.TimeStep]:
    """One environment's time steps; the observation's number is unique."""
    rows: list[dm_env.TimeStep] = []
    left = 0
    for t in range(STEPS):
        frames = {"two": generator.integers(0, 255, 3), "four": generator.random(5)}
        if left == 0:
            kind, left = StepType.FIRST, int(generator.integers(1, 9))
            stacks = {
                "two": np.stack([frames["two"]] * 2, -1),
                "four": np.stack([frames["four"]] * 4),
            }
        else:
            left -= 1
            kind = StepType.MID if left else StepType.LAST
            before = rows[-1].observation
            stacks = {
                "two": np.stack([before["two"][:, 1], frames["two"]], -1),
                "four": np.concatenate([before["four"][1:], frames["four"][np.newaxis]]),
            }
        observation = {
            "number": np.int64(1000 * stream + t),
            "two": stacks["two"].astype(np.uint8),
            "four": stacks["four"].astype(np.float32),
        }
        ends = kind == StepType.LAST and generator.random() < 0.5
        reward = np.float32(0.0 if kind == StepType.FIRST else generator.normal())
        discount = np.float32(0.0 if ends else 1.0)
        rows.append(dm_env.TimeStep(np.int32(kind), reward, discount, observation))
    return rows


def stack(nests: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *nests)


def play(adder: Any, seed: int) -> None:
    generator = np.random.default_rng(seed)
    streams = [rows_of(i, generator) for i in range(STREAMS)]
    steps = [dm_env.TimeStep(*stack([tuple(t) for t in row])) for row in zip(*streams, strict=True)]
    adder.add_first(steps[0])
    for timestep in steps[1:]:
        vector = generator.normal(size=(STREAMS, 2)).astype(np.float32)
        number = generator.integers(0, 9, STREAMS).astype(np.int32)
        adder.add((vector, {"a": number}), timestep, {"log_prob": -vector[:, 0]})


def all_items(replay: Any, count: int) -> dict[int, list[np.ndarray]]:
    """Every item by the number of its first observation."""
    found: dict[int, list[np.ndarray]] = {}
    while len(found) < count:
        data = replay.sample().data
        leaves = jax.tree.leaves(data)
        for i, number in enumerate(data.observation["number"].reshape(len(leaves[0]), -1)[:, 0]):
            found[int(number)] = [np.array(leaf[i]) for leaf in leaves]
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "item", [Transitions(1), Transitions(4, 0.9), Sequences(5, 2), Sequences(3, 3), Episodes(10)]
)
def test_they_hold_the_same(item, seed):
    spec = ReplaySpec(item, 64, 1000)
    embedded = EmbeddedReplay(spec, SPEC, EXTRAS, num_envs=STREAMS)
    play(embedded.adder(), seed)
    server = reverb.Server(replay_on_reverb.make_tables(spec, SPEC, EXTRAS))
    arguments = spec, SPEC, EXTRAS, f"127.0.0.1:{server.port}"
    adder = replay_on_reverb.ReverbAdder(*arguments, num_envs=STREAMS)
    play(adder, seed)
    adder.flush()
    reader = replay_on_reverb.ReverbReplay(*arguments)
    try:
        assert len(reader) == len(embedded)
        mine, other = (all_items(replay, len(embedded)) for replay in (embedded, reader))
        assert mine.keys() == other.keys()
        for number, leaves in mine.items():
            for a, b in zip(leaves, other[number], strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                np.testing.assert_allclose(a, b, rtol=1e-6)
    finally:
        reader.close()
        adder.close()
        server.stop()
