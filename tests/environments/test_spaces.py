"""Spaces become specs, and values cross over in both directions."""

import numpy as np
import pytest
from gymnasium import spaces as gym

from troupe.environments import (
    InvalidActionError,
    InvalidOptionError,
    UnsupportedSpaceError,
    spaces,
    specs,
)

NESTED = gym.Dict(
    {
        "b": gym.Tuple([gym.Discrete(3, start=5), gym.Box(-1, 1, (2,), np.float64)]),
        "a": gym.MultiDiscrete([2, 4]),
    }
)


def bounds(spec):
    return np.asarray(spec.minimum).tolist(), np.asarray(spec.maximum).tolist()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (gym.Discrete(4), specs.DiscreteArray(4)),
        (gym.Discrete(4, start=-2), specs.DiscreteArray(4)),
        (gym.MultiDiscrete([2, 3]), specs.BoundedArray((2,), np.int32, 0, [1, 2])),
        (gym.MultiBinary(3), specs.BoundedArray((3,), np.int8, 0, 1)),
        (gym.Box(-1, 1, (3,)), specs.BoundedArray((3,), np.float32, -1, 1)),
        (gym.Box(0, np.inf, (1,)), specs.BoundedArray((1,), np.float32, 0, np.inf)),
        (gym.Box(-np.inf, np.inf, (2,), np.float64), specs.Array((2,), np.float32)),
        (gym.Box(0, 255, (2, 2), np.uint8), specs.BoundedArray((2, 2), np.uint8, 0, 255)),
        (gym.Box(0, 9, (2,), np.int64), specs.BoundedArray((2,), np.int32, 0, 9)),
    ],
)
def test_spec_of_a_space(space, expected):
    spec = spaces.observation_spec(space)
    assert type(spec) is type(expected)
    assert (spec.shape, spec.dtype) == (expected.shape, expected.dtype)
    if isinstance(spec, specs.BoundedArray):
        assert spec == expected


def test_nests_become_dicts_and_tuples():
    spec = spaces.observation_spec(NESTED)
    assert list(spec) == ["a", "b"]
    assert isinstance(spec["b"], tuple)
    assert [spec["a"].name, spec["b"][0].name] == ["observation/a", "observation/b/0"]


@pytest.mark.parametrize(
    "space",
    [
        gym.Text(3),
        gym.Sequence(gym.Discrete(2)),
        gym.Dict({"x": gym.Tuple([gym.Graph(gym.Discrete(2), None)])}),
    ],
)
def test_spaces_without_a_spec_are_refused(space):
    with pytest.raises(UnsupportedSpaceError, match="has no spec"):
        spaces.observation_spec(space)


@pytest.mark.parametrize(
    "space",
    [
        gym.Discrete(4, start=-2),
        gym.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 7]]),
        gym.MultiBinary(3),
        gym.Box(-2, 3, (2, 2), np.float64),
        NESTED,
    ],
)
def test_what_is_read_fits_the_spec_and_is_written_back(space):
    space.seed(0)
    spec = spaces.observation_spec(space)
    read, write = spaces.observation_reader(space), spaces.action_writer(space, "strict")
    for _ in range(20):
        sample = space.sample()
        value = read(sample)
        specs.check_shapes(value, spec, "value")
        back = write(value)
        assert space.contains(back)
        np.testing.assert_equal(_as_lists(back, np.float32), _as_lists(sample, np.float32))


def _as_lists(value, dtype):
    if isinstance(value, dict):
        return {key: _as_lists(part, dtype) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_as_lists(part, dtype) for part in value]
    return np.asarray(value, dtype).tolist()


BOX = gym.Box(np.array([-1.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64)


@pytest.mark.parametrize(
    ("mode", "action", "expected"),
    [
        ("strict", [0.5, 10.0], [0.5, 10.0]),
        ("clip", [0.5, 5.0], [0.5, 5.0]),
        ("clip", [-7.0, 11.0], [-1.0, 10.0]),
        ("rescale", [-1.0, -1.0], [-1.0, 0.0]),
        ("rescale", [0.5, 0.0], [0.5, 5.0]),
        ("rescale", [2.0, 9.0], [1.0, 10.0]),
    ],
)
def test_actions_in_a_box(mode, action, expected):
    written = spaces.action_writer(BOX, mode)(np.array(action, np.float32))
    assert written.dtype == np.float64
    assert written.tolist() == expected


def test_rescaled_actions_have_the_spec_of_a_unit():
    assert bounds(spaces.action_spec(BOX, "rescale")) == (-1.0, 1.0)
    assert bounds(spaces.action_spec(BOX, "clip")) == ([-1.0, 0.0], [1.0, 10.0])


def test_a_bound_that_32_bits_round_outwards_is_still_within():
    space = gym.Box(-0.1, 0.1, (1,), np.float64)
    written = spaces.action_writer(space, "strict")(np.float32([0.1]))
    assert space.contains(written)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("mode", spaces.ACTION_MODES)
def test_rescaled_and_clipped_actions_are_always_in_the_space(dtype, size, mode):
    random = np.random.default_rng(0)
    low = random.uniform(-9, 0, size).astype(dtype)
    space = gym.Box(low, low + random.uniform(0.1, 9, size).astype(dtype), dtype=dtype)
    write = spaces.action_writer(space, mode)
    limit = 1.0 if mode == "strict" else 20.0
    for i in range(50):
        action = random.uniform(-limit, limit, size).astype(np.float32)
        if i % 5 == 0:
            action = np.sign(action)
        if mode == "strict":
            action = np.clip(action, space.low, space.high).astype(np.float32)
        assert space.contains(write(action))


@pytest.mark.parametrize("mode", spaces.ACTION_MODES)
@pytest.mark.parametrize("action", [[np.nan, 1.0], [0.0], 3.0, "left", None, {"a": 1}])
def test_what_is_no_action_is_refused_in_every_mode(mode, action):
    with pytest.raises(InvalidActionError, match="action must"):
        spaces.action_writer(BOX, mode)(action)


def test_strict_actions_out_of_bounds_are_refused_with_the_remedy():
    with pytest.raises(InvalidActionError, match="actions='clip'"):
        spaces.action_writer(BOX, "strict")([0.0, 10.5])


@pytest.mark.parametrize(
    "action",
    [
        {"a": [0, 0]},
        {"a": [0, 4], "b": (0, [0.0, 0.0])},
        {"a": [0, 0], "b": (3, [0.0, 0.0])},
        {"a": [0, 0], "b": (0,)},
        {"a": [0.5, 0], "b": (0, [0.0, 0.0])},
        [1, 2],
    ],
)
def test_nested_actions_that_do_not_fit_are_refused(action):
    with pytest.raises(InvalidActionError, match="action"):
        spaces.action_writer(NESTED, "strict")(action)


def test_an_unknown_mode_lists_the_modes():
    with pytest.raises(InvalidOptionError, match="strict, clip, rescale"):
        spaces.action_spec(BOX, "wrap")


def test_an_infinite_box_cannot_be_rescaled():
    with pytest.raises(InvalidOptionError, match="not finite"):
        spaces.action_spec(gym.Box(-np.inf, 1, (2,)), "rescale")


def test_errors_are_of_one_line_however_large_the_action():
    with pytest.raises(InvalidActionError) as caught:
        spaces.action_writer(BOX, "strict")(np.zeros((100, 100)))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
