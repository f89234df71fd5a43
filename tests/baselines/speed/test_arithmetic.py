"""The matrix products of an update, counted by hand."""

import jax
import jax.numpy as jnp

from troupe.agents import examples
from troupe.baselines.speed import arithmetic


def test_products_of_loops_branches_and_batches_are_counted():
    def step(x, several):
        def body(carry, _):
            return jax.lax.cond(carry[0, 0] > 0, lambda y: y @ y, lambda y: y, carry), None

        x, _ = jax.lax.scan(body, x, length=6)
        return x, jnp.einsum("eij,ejk->eik", several, several)

    shapes = jnp.zeros((4, 4)), jnp.zeros((5, 3, 3))
    assert arithmetic.products(step, *shapes) == {(1, 4, 4, 4): 3.0, (5, 3, 3, 3): 1.0}


def test_an_update_is_its_products_and_convolutions_are_not_counted():
    example = examples.make("sac", features=3, actions=2, hidden_sizes=(8,), batch_size=16)
    counts = arithmetic.products(example.update, example.state_shapes, example.batch_shapes)
    # Forward: the policy's first layer, twice; and the last of two critics at once: the target's
    # once, of those that learn twice.
    assert counts[1, 16, 3, 8] == 2
    assert counts[2, 16, 8, 1] == 3
    image = examples.make("residual_net")
    assert not arithmetic.products(image.update, image.state_shapes, image.batch_shapes)
    assert arithmetic.seconds(counts, 0.01) > 0.0
