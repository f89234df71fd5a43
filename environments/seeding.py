"""Seeds of many environments from the one seed of a run."""

from __future__ import annotations

import operator

import numpy as np

from .errors import InvalidOptionError


def check_seed(seed: int) -> int:
    """Returns `seed` as a Python int.

    Raises:
      InvalidOptionError: if it is not an integer, or negative.
    """
    try:
        value = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        value = -1
    if value < 0:
        raise InvalidOptionError(f"seed must be an integer of at least 0, got {seed!r}")
    return value


def derive_seed(seed: int, index: int) -> int:
    """The seed of environment `index` of a vector made with `seed`.

    Environment 0 keeps `seed` itself, so that a single environment made with `seed` repeats the
    first row of the vector. The others take one 32-bit word of
    `numpy.random.SeedSequence(seed, spawn_key=(index,))`, which keeps the vectors of runs with
    neighbouring seeds apart, as `seed + index` would not.

    Args:
      seed: the seed of the run, at least 0.
      index: the place of the environment in its vector, at least 0.

    Returns:
      An int below 2**32, or `seed` itself for index 0.

    Raises:
      InvalidOptionError: if either is not an integer of at least 0.
    """
    seed = check_seed(seed)
    if index < 0:
        raise InvalidOptionError(f"index must be at least 0, got {index}")
    if index == 0:
        return seed
    sequence = np.random.SeedSequence(seed, spawn_key=(index,))
    return int(sequence.generate_state(1)[0])
