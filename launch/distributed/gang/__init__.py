"""A learner of several processes, joined by `jax.distributed`."""
