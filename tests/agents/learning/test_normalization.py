"""Running statistics are those of all the rows together."""

import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.learning import normalization


def test_batches_in_turn_give_the_moments_of_all():
    rng = np.random.default_rng(0)
    rows = rng.normal(3.0, 2.0, (40, 5)).astype(np.float32)
    statistics = normalization.init(specs.Array((5,), np.float32))
    for part in np.split(rows, [7, 20]):
        statistics = normalization.update(statistics, jnp.asarray(part), jnp.ones(len(part)))
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.variance, rows.var(0), rtol=1e-4)
    normalised = normalization.apply(statistics, jnp.asarray(rows))
    np.testing.assert_allclose(normalised.std(0), 1.0, rtol=1e-4)


def test_padding_does_not_count():
    spec = {"a": specs.Array((), np.float32)}
    rows = {"a": jnp.asarray([[1.0, 3.0, 1e6]])}
    statistics = normalization.update(
        normalization.init(spec), rows, jnp.asarray([[1.0, 1.0, 0.0]])
    )
    assert float(statistics.mean["a"]) == 2.0
    assert float(statistics.variance["a"]) == 1.0
    unchanged = normalization.update(statistics, rows, jnp.zeros((1, 3)))
    assert float(unchanged.mean["a"]) == 2.0
    assert float(unchanged.variance["a"]) == 1.0


def test_numbers_that_are_not_real_are_refused():
    with pytest.raises(ValueError, match="normalize_observations"):
        normalization.init(specs.DiscreteArray(3))
