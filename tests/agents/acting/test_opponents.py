"""The older versions of itself that a learner plays against."""

import jax
import jax.numpy as jnp
import numpy as np

from troupe.agents.acting import opponents
from troupe.environments.functional.games import SelfPlay

POOL = SelfPlay(versions=3, period=10)


def params(number):
    return {"w": jnp.full((2,), float(number)), "n": jnp.int32(number)}


def held_after(steps, how=POOL):
    """Versions held, where the policy of each step is its number."""
    versions = opponents.empty(how, params(0))
    for step in steps:
        versions = opponents.renew(how, versions, params(step), jnp.int32(step), True)
    return versions


def test_a_version_is_held_at_each_period_and_the_newest_stay():
    versions = held_after(range(0, 45, 4))  # Due at 0, from 10 on, from 10 later on, ...
    assert int(versions.total) == 4
    assert sorted(versions.params["n"].tolist()) == [12, 24, 36]
    assert (versions.params["w"][:, 0] == versions.params["n"]).all()


def test_a_run_that_goes_on_late_holds_one_version_and_no_more():
    assert held_after([1000, 1001, 1005]).params["n"].tolist() == [1000, 0, 0]


def test_nothing_is_held_where_a_run_is_not_active():
    versions = opponents.renew(
        POOL, opponents.empty(POOL, params(0)), params(5), jnp.int32(5), jnp.bool_(False)
    )
    assert int(versions.total) == 0
    assert not versions.params["w"].any()


def test_half_of_the_moves_are_the_present_policys_and_the_rest_of_all_versions():
    for steps, held in ((range(0, 12, 4), [0]), (range(0, 45, 4), [12, 24, 36])):
        versions = held_after(steps)
        held = held if len(held) > 1 else sorted({*versions.params["n"].tolist()} - {0} | {0})
        draw = jax.jit(lambda key, v=versions: opponents.draw(POOL, v, params(99), key)["n"])
        drawn = np.array([int(draw(jax.random.key(seed))) for seed in range(600)])
        assert {*drawn.tolist()} == {*held, 99}
        assert 0.42 < (drawn == 99).mean() < 0.58
        for one in held:
            assert 0.35 < (drawn == one).mean() * 2 * len(held) < 1.7


def test_without_versions_the_opponent_is_the_present_policy():
    how = SelfPlay(versions=0, period=10)
    versions = opponents.empty(how, params(0))
    versions = opponents.renew(how, versions, params(1), jnp.int32(30), True)
    assert jax.tree.leaves(versions) == []
    assert opponents.draw(how, versions, params(7), jax.random.key(0))["n"] == 7
