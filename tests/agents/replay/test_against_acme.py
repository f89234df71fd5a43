"""acme's own adders write what ours write, where both can say it."""

from __future__ import annotations

import dm_env
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.replay import EmbeddedReplay, ReplaySpec, Sequences, Transitions
from troupe.environments.specs import EnvironmentSpec

pytestmark = pytest.mark.distributed
reverb = pytest.importorskip("reverb")
adders = pytest.importorskip("acme.adders.reverb")

SPEC = EnvironmentSpec(
    specs.Array((), np.float32),
    specs.Array((), np.int32),
    specs.Array((), np.float32),
    specs.Array((), np.float32),
)
LENGTHS = (5, 1, 2, 9, 3)


def play(adder) -> None:
    """Episodes whose observations count on; every other one is cut short instead of ending."""
    number = 0
    for episode, length in enumerate(LENGTHS):
        adder.add_first(dm_env.restart(np.float32(number)))
        for left in reversed(range(length)):
            number += 1
            step = dm_env.TimeStep(
                dm_env.StepType.MID if left else dm_env.StepType.LAST,
                np.float32(number % 4 - 1.5),
                np.float32(1.0 if left or episode % 2 else 0.0),
                np.float32(number),
            )
            adder.add(np.int32(number), step)
        number += 1


def written_by(adder_class, table_signature, **options) -> list[dict[str, np.ndarray]]:
    """The items of an adder of acme, oldest first."""
    table = reverb.Table.queue("priority_table", 1000, signature=table_signature)
    server = reverb.Server([table])
    client = reverb.Client(f"127.0.0.1:{server.port}")
    adder = adder_class(client, **options)
    play(adder)
    count = client.server_info()["priority_table"].current_size
    samples = client.sample(
        "priority_table", count, emit_timesteps=False, unpack_as_table_signature=True
    )
    items = [
        {
            name: np.asarray(value)
            for name, value in sample.data._asdict().items()
            if name != "extras"
        }
        for sample in samples
    ]
    server.stop()
    return items


def ours(item) -> list[dict[str, np.ndarray]]:
    replay = EmbeddedReplay(ReplaySpec(item, 64, 1000), SPEC, seed=0)
    play(replay.adder())
    found: dict[int, dict[str, np.ndarray]] = {}
    while len(found) < len(replay):
        sample = replay.sample()
        for i, key in enumerate(sample.info.keys):
            fields = sample.data._asdict().items()
            found[int(key)] = {name: value[i] for name, value in fields if name != "extras"}
    return [found[key] for key in sorted(found)]


@pytest.mark.parametrize("n_step", [1, 2, 4])
def test_transitions(n_step):
    theirs = written_by(
        adders.NStepTransitionAdder,
        adders.NStepTransitionAdder.signature(SPEC),
        n_step=n_step,
        discount=0.9,
    )
    # Theirs also has, of the first action of an episode, windows shorter than n: of all that begin
    # with one observation, the longest is ours.
    longest = {float(item["observation"]): item for item in theirs}
    for item in theirs:
        key = float(item["observation"])
        longest[key] = max(longest[key], item, key=lambda i: float(i["next_observation"]))
    expected = [longest[key] for key in sorted(longest)]
    for mine, other in zip(ours(Transitions(n_step, 0.9)), expected, strict=True):
        for name, value in other.items():
            np.testing.assert_allclose(mine[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(("length", "period"), [(3, 1), (4, 2), (4, 4), (7, 3)])
def test_sequences(length, period):
    theirs = written_by(
        adders.SequenceAdder,
        adders.SequenceAdder.signature(SPEC, sequence_length=length),
        sequence_length=length,
        period=period,
    )
    for mine, other in zip(ours(Sequences(length, period)), theirs, strict=True):
        np.testing.assert_array_equal(mine["step_type"] == 0, other.pop("start_of_episode"))
        for name, value in other.items():
            np.testing.assert_array_equal(mine[name], value, err_msg=name)
