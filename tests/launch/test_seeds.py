"""One seed, many roles."""

import itertools

import pytest

from troupe.launch import seeds
from troupe.launch.errors import RequestError


def test_roles_indices_and_runs_never_share_a_seed():
    indices = [(), (0,), (1,), (0, 1)]
    found = {
        seeds.derive(seed, role, *index)
        for seed, role, index in itertools.product(range(20), seeds.ROLES, indices)
    }
    assert len(found) == 20 * len(seeds.ROLES) * len(indices)
    assert all(0 <= seed < 2**31 for seed in found)


def test_they_are_the_same_in_every_version():
    """Written out: who repeats a published run needs the seeds of then."""
    assert [seeds.derive(1, role) for role in seeds.ROLES] == GOLDEN


GOLDEN = [820705584, 727063581, 1374802077, 1528361072, 1867002961, 240241362]


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_a_seed_is_an_integer_of_at_least_zero(seed):
    with pytest.raises(RequestError, match="the seed is"):
        seeds.derive(seed, "learner")
