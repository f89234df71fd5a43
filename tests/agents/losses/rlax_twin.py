"""Losses as rlax computes them, in a process of its own: `python rlax_twin.py IN.npz OUT.npz`.

rlax cannot be imported beside TensorFlow on Python 3.10, and takes seconds where it can.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import rlax


def main(source: str, destination: str) -> None:
    given = {name: jnp.asarray(value) for name, value in np.load(source).items()}
    args = [given[name] for name in ("q_tm1", "a_tm1", "r_t", "discount_t", "q_t")]
    advantages = jax.vmap(rlax.truncated_generalized_advantage_estimation, (0, 0, None, 0))
    surrogate = jax.vmap(rlax.clipped_surrogate_pg_loss, (0, 0, None))
    np.savez(
        destination,
        q_learning=jax.vmap(rlax.q_learning)(*args),
        double_q_learning=jax.vmap(rlax.double_q_learning)(*args, given["q_t_selector"]),
        huber=rlax.huber_loss(given["r_t"], 0.7),
        advantages=advantages(
            given["rewards"], given["discounts"], float(given["lambda"]), given["values"]
        ),
        surrogate=surrogate(given["ratios"], given["rewards"], 0.2),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
