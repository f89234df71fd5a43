"""Environments of pgx, brax and craftax, as functional environments."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from troupe import environments
from troupe.environments import functional
from troupe.environments.functional import streams
from troupe.environments.functional.hosted import keys_of

STREAMS = 3
FULL = pytest.mark.skipif(
    not os.environ.get("TROUPE_FULL"), reason="compiles long; set TROUPE_FULL=1"
)
ROWS = [
    ("pgx", "jax:pgx/minatar-breakout", {}),
    ("pgx", "jax:pgx/tic_tac_toe", {}),
    *(
        pytest.param(suite, f"jax:{suite}/{name}", arguments, marks=[pytest.mark.long, *marks])
        for suite, name, arguments, *marks in [
            ("pgx", "minatar-freeway", {"sticky_action_prob": 0.0}, FULL),
            ("pgx", "2048", {}, FULL),
            ("pgx", "kuhn_poker", {}),
            ("brax", "inverted_pendulum", {"backend": "spring"}),
            ("brax", "halfcheetah", {"backend": "mjx"}, FULL),
            ("craftax", "Craftax-Classic-Symbolic-v1", {}),
        ]
    ),
]
"""Package, id and arguments."""


def draw(spec, random, steps):
    if spec.dtype.kind == "f":
        return random.uniform(-1.0, 1.0, (steps, STREAMS, *spec.shape)).astype(np.float32)
    return random.integers(spec.num_values, size=(steps, STREAMS), dtype=np.int32)


def play(environment, actions):
    """Time steps [T + 1, N, ...] of a scan from the seeds 0 to N - 1."""

    @jax.jit
    def run(keys):
        begun, first = streams.reset(environment, keys)
        _, later = jax.lax.scan(functools.partial(streams.step, environment), begun, actions)
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)

    return jax.tree.map(np.asarray, run(keys_of(range(STREAMS))))


@pytest.mark.parametrize(("package", "id", "arguments"), ROWS)
def test_a_suite_gives_what_its_specs_say(package, id, arguments):
    """Hosted and compiled, with the same episodes, and cut short apart from ended."""
    pytest.importorskip(package)
    limit, steps = 12, 40
    environment = functional.make(id, max_episode_steps=limit, **arguments)
    actions = draw(environment.actions, np.random.default_rng(0), steps)
    compiled = play(environment, actions)
    hosted = functional.FunctionalVector(environment, id, range(STREAMS))
    found = [hosted.reset(), *map(hosted.step, actions)]
    spec = environments.make_spec(hosted)
    length = np.zeros(STREAMS, int)
    for t, timestep in enumerate(found):
        for row in range(STREAMS):
            tree.map_structure(
                lambda part, value, row=row: part.validate(value[row]),
                spec.observations,
                timestep.observation,
            )
            spec.rewards.validate(timestep.reward[row])
        for one, other in zip(tree.flatten(timestep), tree.flatten(compiled), strict=True):
            np.testing.assert_allclose(one, other[t], rtol=1e-4, atol=1e-4)
        length = np.where(timestep.step_type == 0, 0, length + 1)
        last, early = timestep.step_type == 2, length < limit
        assert (timestep.discount[last & early] == 0.0).all()
        assert last[length == limit].all()
    assert (compiled.step_type == 2).any()


@pytest.mark.parametrize(
    ("package", "id", "limit"),
    [
        ("pgx", "jax:pgx/minatar-breakout", None),
        pytest.param("brax", "jax:brax/halfcheetah", 1_000, marks=pytest.mark.long),
        pytest.param("brax", "jax:brax/reacher", 1_000, marks=pytest.mark.long),
        pytest.param(
            "craftax", "jax:craftax/Craftax-Classic-Symbolic-v1", 10_000, marks=pytest.mark.long
        ),
    ],
)
def test_limits_are_those_of_the_suite(package, id, limit):
    pytest.importorskip(package)
    assert functional.make(id).max_episode_steps == limit


def test_a_task_without_an_end_is_cut_short_only():
    """An episode of Freeway takes 2,500 steps, and ours are over before."""
    pytest.importorskip("pgx")
    environment = functional.make("jax:pgx/minatar-freeway", max_episode_steps=5)
    steps = play(environment, np.zeros((11, STREAMS), np.int32))
    assert (steps.step_type[5] == 2).all()
    assert (steps.step_type[11] == 2).all()
    assert (steps.discount == 1.0).all()


@pytest.mark.parametrize("game", ["breakout", "asterix", "space_invaders", "freeway", "seaquest"])
def test_minatar_has_the_specs_of_minatar(game):
    pytest.importorskip("pgx")
    pytest.importorskip("minatar")
    theirs = "SpaceInvaders" if game == "space_invaders" else game.capitalize()
    ids = f"jax:pgx/minatar-{game}", f"MinAtar/{theirs}-v1"
    ours, others = (environments.make_spec(environments.make(id, seed=0)) for id in ids)
    assert ours == others


def test_the_learner_sees_its_own_moves_and_others_move_between():
    """In a row are as many stones of others as of its own, or one more where they began."""
    pytest.importorskip("pgx")
    environment = functional.make("jax:pgx/tic_tac_toe")
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    began = set()
    for seed in range(8):
        state, observation = reset(jax.random.key(seed))
        board = observation["observation"]
        began.add(int(board.sum()))
        for move in range(9):
            free = np.flatnonzero(np.asarray(~board.any(-1)).reshape(-1))
            assert np.flatnonzero(observation["action_mask"]).tolist() == free.tolist()
            key = jax.random.key(100 * seed + move)
            before = board.sum((0, 1))
            state, output = step(state, jnp.int32(free[0]), key)
            observation = output.observation
            board = observation["observation"]
            assert not output.truncated
            if output.terminated:
                assert output.reward in (-1.0, 0.0, 1.0)
                break
            assert output.reward == 0.0
            assert (board.sum((0, 1)) == before + 1).all()
        assert output.terminated
    assert began == {0, 1}


def test_an_illegal_move_loses_at_once():
    pytest.importorskip("pgx")
    environment = functional.make("jax:pgx/tic_tac_toe")
    state, observation = environment.reset(jax.random.key(0))
    free = jnp.argmax(observation["action_mask"]).astype(jnp.int32)
    step = jax.jit(environment.step)
    state, output = step(state, free, jax.random.key(1))
    assert (output.terminated, output.reward) == (False, 0.0)
    state, output = step(state, free, jax.random.key(2))
    assert (output.terminated, output.reward) == (True, -1.0)


def test_rewards_are_the_learners():
    """A hand of poker ends with a gain or a loss, for those moves too that others made."""
    pytest.importorskip("pgx")
    environment = functional.make("jax:pgx/kuhn_poker")
    steps = play(environment, np.zeros((60, STREAMS), np.int32))
    last = steps.step_type == 2
    assert set(np.abs(steps.reward[last])) <= {1.0, 2.0}
    assert (steps.reward[last] > 0).any()
    assert (steps.reward[last] < 0).any()
    assert (steps.reward[~last] == 0).all()


@pytest.mark.parametrize(
    ("package", "id", "arguments", "error", "words"),
    [
        ("pgx", "jax:pgx/minatar-brakout", {}, "UnknownEnvironmentError", "jax:pgx/minatar-break"),
        ("pgx", "jax:pgx/minatar-breakout", {"sticky": 0.5}, "InvalidOptionError", "sticky_action"),
        ("pgx", "jax:pgx/go_9x9", {"size": 5}, "InvalidOptionError", "takes no arguments"),
        ("brax", "jax:brax/halfchetah", {}, "UnknownEnvironmentError", "jax:brax/halfcheetah"),
        ("brax", "jax:brax/fast", {}, "UnknownEnvironmentError", "jax:brax/"),
        ("brax", "jax:brax/halfcheetah", {"backnd": "mjx"}, "InvalidOptionError", "mean backend"),
        ("brax", "jax:brax/swimmer", {"backend": "spring"}, "InvalidOptionError", "spring"),
        ("craftax", "jax:craftax/Craftax-v1", {}, "UnknownEnvironmentError", "Craftax-Symbolic-v1"),
        (
            *("craftax", "jax:craftax/Craftax-Classic-Symbolic-v1", {"max_timesteps": 3}),
            *("InvalidOptionError", "no argument 'max_timesteps'"),
        ),
    ],
)
def test_what_a_suite_does_not_have_is_said_in_a_line(package, id, arguments, error, words):
    pytest.importorskip(package)
    with pytest.raises(getattr(environments, error), match=words) as caught:
        environments.make(id, seed=0, **arguments)
    assert "\n" not in str(caught.value)
