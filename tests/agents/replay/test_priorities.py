import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe.agents.replay.embedded.priorities import Priorities


@pytest.mark.parametrize("capacity", [1, 31, 32, 33, 1000, 200_000])
def test_draws_are_those_of_cumulative_sums(capacity):
    """Slot i is drawn for numbers between the sums of the weights before it and up to it."""
    generator = np.random.default_rng(0)
    weights = generator.random(capacity) ** 4
    weights[generator.random(capacity) < 0.3] = 0.0
    weights[-1] = 0.5
    priorities = Priorities(capacity)
    priorities.set(np.arange(capacity), weights)
    uniforms = generator.random((3, 200))
    slots, probabilities = priorities.draw(uniforms)
    sums = np.cumsum(weights)
    np.testing.assert_array_equal(slots, sums.searchsorted(uniforms * sums[-1], side="right"))
    np.testing.assert_allclose(probabilities, weights[slots] / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("capacity", [7, 4000, 150_000])
def test_the_ends_of_the_range_draw_what_can_be_drawn(capacity):
    priorities = Priorities(capacity)
    held = np.array([capacity // 3, capacity // 2])
    priorities.set(held, np.array([1e-12, 3.0]))
    slots, _ = priorities.draw(np.array([0.0, 1e-300, np.nextafter(1.0, 0.0), 0.5]))
    assert slots.tolist() == [held[0], held[0], held[1], held[1]]


@given(
    capacity=st.sampled_from([5, 64, 5000]),
    changes=st.lists(
        st.tuples(st.sampled_from(["one", "range", "many"]), st.integers(0, 2**31)), max_size=40
    ),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_changes_leave_the_sums_exact(capacity, changes):
    priorities, weights = Priorities(capacity), np.zeros(capacity)
    for kind, seed in changes:
        generator = np.random.default_rng(seed)
        if kind == "one":
            slot = int(generator.integers(capacity))
            weights[slot] = seed % 7
            priorities.set_one(slot, seed % 7)
        elif kind == "range":
            start, end = sorted(generator.integers(0, capacity + 1, 2).tolist())
            if start < end:
                weights[start:end] = seed % 5
                priorities.set_range(start, end, seed % 5)
        else:
            slots = generator.integers(0, capacity, generator.integers(1, 3000))
            values = generator.integers(0, 9, len(slots)).astype(float)
            for slot, value in zip(slots, values, strict=True):
                weights[slot] = value
            priorities.set(slots, values)
        if weights.any():
            uniforms = generator.random(50)
            slots, probabilities = priorities.draw(uniforms)
            sums = np.cumsum(weights)
            expected = sums.searchsorted(uniforms * sums[-1], side="right")
            np.testing.assert_array_equal(slots, expected)
            np.testing.assert_allclose(probabilities, weights[slots] / sums[-1], rtol=1e-12)
        else:
            with pytest.raises(ValueError, match="all priorities are 0"):
                priorities.draw(np.zeros(1))


def test_weights_of_very_different_sizes_keep_their_shares():
    priorities = Priorities(100_000)
    priorities.set(np.arange(100_000), 1e-9)
    priorities.set_one(77, 1e6)
    uniforms = np.linspace(0.0, 1.0, 10_001)[:-1]
    slots, probabilities = priorities.draw(uniforms)
    assert (slots == 77).mean() > 0.999
    np.testing.assert_allclose(probabilities[slots == 77], 1e6 / (1e6 + 99_999e-9))


def test_a_restored_tree_draws_the_same():
    generator = np.random.default_rng(1)
    one, other = Priorities(3000), Priorities(3000)
    other.set(np.arange(3000), 2.0)
    one.set(np.arange(2000), generator.random(2000))
    one.draw(generator.random(3))
    other.restore(one.save(2000).copy())
    uniforms = generator.random(100)
    np.testing.assert_array_equal(one.draw(uniforms)[0], other.draw(uniforms)[0])
