"""Games of two players against opponents of one's choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.environments import functional
from troupe.environments.functional import games, streams
from troupe.environments.functional.hosted import keys_of

pytest.importorskip("pgx")
ID = "jax:pgx/tic_tac_toe"


def counting(first=0):
    """An opponent that takes the legal action of the number of moves that it has made."""

    def move(observation, mask, state, key):
        legal = jnp.nonzero(mask, size=9)[0]
        return legal[jnp.minimum(state, mask.sum() - 1)].astype(jnp.int32), state + 1

    return games.Opponent(lambda key: jnp.int32(first), move)


def stones(observation):
    """Cells that hold the learner's stones, and those of its opponent's."""
    own, other = np.asarray(observation["observation"]).reshape(9, 2).T
    return np.flatnonzero(own).tolist(), np.flatnonzero(other).tolist()


def test_an_opponent_moves_by_its_state_which_lasts_for_an_episode():
    environment = functional.make(ID).against(counting())
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    seeds = [seed for seed in range(6) if not stones(reset(jax.random.key(seed))[1])[1]]
    key = jax.random.key(seeds[0])  # The learner begins.
    state, _ = reset(key)
    state, output = step(state, jnp.int32(8), key)
    assert stones(output.observation) == ([8], [0])
    state, output = step(state, jnp.int32(7), key)
    # Of 1 to 6 the second.
    assert stones(output.observation) == ([7, 8], [0, 2])


def test_a_new_episode_begins_with_a_new_state():
    environment = functional.make(ID, max_episode_steps=2).against(counting())
    begun, timestep = streams.reset(environment, keys_of(range(8)))
    step = jax.jit(lambda *state: streams.step(environment, *state))
    for _ in range(12):
        mask = timestep.observation["action_mask"]
        begun, timestep = step(begun, 8 - jnp.argmax(mask[:, ::-1], axis=1).astype(jnp.int32))
        for row in np.flatnonzero(timestep.step_type == 0):
            own, other = stones(jax.tree.map(lambda x, i=row: x[i], timestep.observation))
            assert own == []
            assert other in ([], [0])


def test_options_of_an_environment_hold_against_every_opponent():
    environment = functional.make(ID, max_episode_steps=1, reward_clip=0.5)
    for one in (environment, environment.against(counting())):
        assert one.max_episode_steps == 1
        key = jax.random.key(0)
        state, observation = one.reset(key)
        legal = jnp.argmax(observation["action_mask"]).astype(jnp.int32)
        assert one.step(state, legal, key)[1].truncated
        taken = jnp.argmin(observation["action_mask"]).astype(jnp.int32)
        if not observation["action_mask"][taken]:
            assert one.step(state, taken, key)[1].reward == -0.5


def test_parameters_of_an_opponent_change_without_compiling_anew():
    vector = environments.make(ID, seed=0, num_envs=3)
    vector.face(lambda params: vector.functions.against(counting(params)), jnp.int32(0))
    seen = {}
    for first in (0, 3):
        vector.opponent = jnp.int32(first)
        seen[first] = vector.reset().observation["observation"]
        mask = vector.step(np.zeros(3, np.int32)).observation["action_mask"]
        vector.step(mask.argmax(axis=1).astype(np.int32))
    assert vector._go_on._cache_size() == vector._begin._cache_size() == 1
    began = [seen[first].reshape(3, 9, 2)[..., 1] for first in (0, 3)]
    assert {tuple(np.flatnonzero(row)) for row in began[0]} <= {(), (0,)}
    assert {tuple(np.flatnonzero(row)) for row in began[1]} <= {(), (3,)}
    assert began[0].any() or began[1].any()


def test_what_training_asks_for_changes_nothing_of_how_a_game_comes():
    asked = functional.make(ID, opponent="pool", opponent_versions=3, opponent_period=100)
    assert asked.self_play == games.SelfPlay(3, 100)
    assert functional.make(ID, opponent="self").self_play.versions == 0
    assert functional.make(ID).self_play is None
    for seed in range(4):
        key = jax.random.key(seed)
        first, second = (one.reset(key)[1] for one in (asked, functional.make(ID)))
        assert (first["observation"] == second["observation"]).all()


@pytest.mark.parametrize(
    ("id", "arguments", "words"),
    [
        (ID, {"opponent": "best"}, "random, self, pool"),
        (ID, {"opponent": "pool", "opponent_versions": 0}, "opponent_versions"),
        (ID, {"opponent": "pool", "opponent_period": "often"}, "opponent_period"),
        ("jax:pgx/minatar-breakout", {"opponent": "self"}, "games of two"),
    ],
)
def test_opponents_that_cannot_be_are_named(id, arguments, words):
    with pytest.raises(environments.InvalidOptionError, match=words):
        functional.make(id, **arguments)
