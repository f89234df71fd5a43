"""One seed becomes the seeds of all roles.

The seed of a role is one word of `numpy.random.SeedSequence(seed, spawn_key=(role, *indices))`,
where `role` is the role's place in `ROLES`. Two roles, or two indices of one role, never share a
stream of random numbers, and runs with neighbouring seeds have nothing in common.
"""

from __future__ import annotations

import numpy as np

from .errors import RequestError

# Only ever append: a role's place is part of what its seed is made from.
ROLES = ("environment", "actor", "learner", "replay", "evaluation_environment", "evaluation_actor")


def derive(seed: int, role: str, *indices: int) -> int:
    """The seed of a role.

    Args:
      seed: that of the run, at least 0.
      role: one of `ROLES`.
      indices: what tells the members of a role apart: an actor's number, the number of times that
        the run was resumed, the number of an evaluation.

    Returns:
      An int of at least 0 and below 2**31, which every library takes.
    """
    for number in (seed, *indices):
        check(number)
    sequence = np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), *indices))
    return int(sequence.generate_state(1)[0] >> 1)


def check(seed: int) -> int:
    """Returns the seed.

    Raises:
      RequestError: if it is not an integer of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise RequestError(f"the seed is {seed!r}; it must be an integer of at least 0.")
    return int(seed)
