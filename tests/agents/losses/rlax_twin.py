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
    atoms, logits = given["atoms"], (given["logits_tm1"], given["logits_t"])
    transition = (given["a_tm1"], given["r_t"], given["discount_t"])
    categorical = jax.vmap(rlax.categorical_double_q_learning, (None, 0, 0, 0, 0, None, 0, 0))
    # As quantiles [N, A]; the action is chosen by their mean.
    quantiles = [jnp.swapaxes(x, 1, 2) for x in logits]
    midpoints = (jnp.arange(len(atoms)) + 0.5) / len(atoms)
    quantile = jax.vmap(rlax.quantile_q_learning, (0, None, 0, 0, 0, 0, 0, None))
    vtrace = jax.vmap(rlax.vtrace_td_error_and_advantage, (0, 0, 0, 0, 0, None, None, None))(
        given["values"][:, :-1],
        given["values"][:, 1:],
        given["rewards"],
        given["discounts"],
        given["ratios"],
        float(given["lambda"]),
        1.3,
        1.3,
    )
    np.savez(
        destination,
        project=jax.vmap(rlax.categorical_l2_project, (0, 0, None))(
            3.0 * logits[0][:, 0], jax.nn.softmax(logits[1][:, 0]), atoms
        ),
        two_hot=rlax.transform_to_2hot(
            3.0 * given["r_t"], float(atoms[0]), float(atoms[-1]), len(atoms)
        ),
        categorical=categorical(
            *(atoms, logits[0], *transition, atoms, logits[1], given["q_t_selector"])
        ),
        quantile=quantile(quantiles[0], midpoints, *transition, quantiles[1], quantiles[1], 0.7),
        q_learning=jax.vmap(rlax.q_learning)(*args),
        double_q_learning=jax.vmap(rlax.double_q_learning)(*args, given["q_t_selector"]),
        huber=rlax.huber_loss(given["r_t"], 0.7),
        hyperbolic=rlax.signed_hyperbolic(10.0 * given["r_t"]),
        parabolic=rlax.signed_parabolic(given["r_t"]),
        targets=jax.vmap(rlax.n_step_bootstrapped_returns, (0, 0, 0, None))(
            given["rewards"], given["discounts"], given["values"][:, 1:], 3
        ),
        advantages=advantages(
            given["rewards"], given["discounts"], float(given["lambda"]), given["values"]
        ),
        vtrace_errors=vtrace.errors,
        vtrace_advantages=vtrace.pg_advantage,
        surrogate=surrogate(given["ratios"], given["rewards"], 0.2),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
