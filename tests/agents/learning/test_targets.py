"""Target networks."""

import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.learning import targets


def test_polyak_goes_part_of_the_way():
    target = targets.polyak({"w": jnp.zeros(2)}, {"w": jnp.ones(2)}, 0.25)
    np.testing.assert_array_equal(target["w"], [0.25, 0.25])


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_periodic_moves_at_its_turn_and_no_sooner(num_steps):
    moved = [
        int(targets.periodic(jnp.zeros(()), jnp.ones(()), jnp.int32(n), 6, num_steps=num_steps))
        for n in range(num_steps, 19, num_steps)
    ]
    turns = [n % 6 == 0 for n in range(num_steps, 19, num_steps)]
    assert moved == [int(turn) for turn in turns]
    assert any(moved)


def test_a_target_begins_where_the_parameters_are_in_buffers_of_its_own():
    params = {"w": jnp.arange(3.0)}
    target = targets.init(params)
    np.testing.assert_array_equal(target["w"], params["w"])
    assert target["w"].unsafe_buffer_pointer() != params["w"].unsafe_buffer_pointer()
