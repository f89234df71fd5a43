"""Programs of these tests are small, and run a few times."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
