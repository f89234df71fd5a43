"""Stacks of frames can be rebuilt from the frames; their spec survives copying and pickling."""

import copy
import pickle

import numpy as np
import pytest

from troupe.environments import InvalidOptionError, StackedArray, StackFrames, fakes, make_spec


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_index_k_is_the_frame_of_stack_minus_1_minus_k_steps_ago(stack):
    options = {"seed": 3, "episode_lengths": (1, 2, 7, 3)}
    stacked = fakes.image(size=5, stack=stack, **options)
    spec = make_spec(stacked)
    single = fakes.Fake(spec._replace(observations=spec.observations.frame), **options)
    frames = []
    for timestep, frame in ((stacked.reset(), single.reset()), *_steps(stacked, single, 16)):
        if frame.first():
            frames = []
        frames.append(frame.observation)
        t = len(frames) - 1
        for k in range(stack):
            expected = frames[max(0, t - stack + 1 + k)]
            np.testing.assert_array_equal(timestep.observation[..., k], expected)


def _steps(left, right, n):
    for _ in range(n):
        yield left.step(0), right.step(0)


def spec_of_stack(**changes):
    arguments = {"shape": (8, 8, 4), "dtype": np.uint8, "minimum": 0, "maximum": 255, "stack": 4}
    return StackedArray(**{**arguments, **changes})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_the_spec_survives(copied):
    spec = spec_of_stack(name="observation")
    again = copied(spec)
    assert type(again) is StackedArray
    assert again == spec
    assert again.name == "observation"
    assert spec.replace(name="other") == spec


def test_specs_differ_by_their_stacks():
    assert spec_of_stack() != spec_of_stack(shape=(4, 8, 4), axis=0)
    assert spec_of_stack() != spec_of_stack().frame
    assert spec_of_stack(axis=2) == spec_of_stack(axis=-1)


@pytest.mark.parametrize("changes", [{"stack": 3}, {"axis": 3}, {"axis": 0}, {"stack": 0}])
def test_a_stack_that_does_not_fit_its_shape_is_refused(changes):
    with pytest.raises(InvalidOptionError, match=r"\(8, 8, 4\)"):
        spec_of_stack(**changes)


@pytest.mark.parametrize("make", [lambda: fakes.nested(seed=0), lambda: fakes.discrete(seed=0)])
def test_only_one_bounded_array_can_be_stacked(make):
    with pytest.raises(InvalidOptionError, match="can be stacked"):
        StackFrames(make(), 4)


def test_a_stack_has_at_least_one_frame():
    with pytest.raises(InvalidOptionError, match="at least 1"):
        StackFrames(fakes.Match(seed=0), 0)
