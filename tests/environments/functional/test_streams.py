"""Episodes of functional environments, in a compiled program and from Python."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.environments import functional, specs
from troupe.environments.functional import streams, transforms
from troupe.environments.functional.hosted import keys_of


class Count(NamedTuple):
    steps: jax.Array
    length: jax.Array


def corridor(lengths=(3, 5), *, nan_at: int = -1):
    """Episodes of a length drawn from `lengths`; the observation counts, and holds the key."""

    def observe(state, key):
        bits = jax.random.bits(key, (), jnp.uint32).astype(jnp.float32)
        return {"count": state.steps, "noise": bits}

    def reset(key):
        state = Count(jnp.int32(0), jax.random.choice(key, jnp.array(lengths)))
        return state, observe(state, key)

    def step(state, action, key):
        state = state._replace(steps=state.steps + 1)
        over = state.steps >= state.length
        reward = jnp.where(state.steps == nan_at, jnp.nan, action.sum())
        return state, functional.StepOutput(observe(state, key), reward, over, jnp.bool_(False))

    observations = {
        "count": specs.Array((), np.int32, "count"),
        "noise": specs.Array((), np.float32, "noise"),
    }
    actions = specs.BoundedArray((2,), np.float32, -2.0, 4.0, "action")
    return functional.FunctionalEnvironment(reset, step, observations, actions)


def play_in_scan(environment, keys, actions):
    begun, first = streams.reset(environment, keys)
    _, later = jax.lax.scan(functools.partial(streams.step, environment), begun, actions)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)


def play(environment, keys, actions):
    """Time steps [T + 1, N, ...] of a scan."""
    run = jax.jit(functools.partial(play_in_scan, environment))
    return jax.tree.map(np.asarray, run(keys, actions))


def test_after_the_last_step_comes_the_first_of_another_episode():
    steps = play(corridor(), keys_of([0, 1, 2]), np.ones((40, 3, 2), np.float32))
    kinds = steps.step_type
    assert (kinds[0] == 0).all()
    lengths = set()
    for stream in range(3):
        count = 0
        for t in range(41):
            kind = kinds[t, stream]
            count = 0 if kind == 0 else count + 1
            assert steps.observation["count"][t, stream] == count
            assert steps.reward[t, stream] == (0.0 if kind == 0 else 2.0)
            assert steps.discount[t, stream] == (0.0 if kind == 2 else 1.0)
            if kind == 2:
                lengths.add(count)
                assert t == 40 or kinds[t + 1, stream] == 0
            elif t:
                assert (kind == 0) == (kinds[t - 1, stream] == 2)
    assert lengths == {3, 5}
    # No two draws of a stream are the same, nor those of two streams.
    assert len(np.unique(steps.observation["noise"])) == steps.observation["noise"].size


def test_a_stream_is_the_same_among_others_and_alone():
    actions = np.ones((20, 3, 2), np.float32)
    together = play(corridor(), keys_of([4, 5, 6]), actions)
    alone = play(corridor(), keys_of([6]), actions[:, 2:])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, 2:], b), together, alone)


@pytest.mark.parametrize(("streams_of", "block"), [(6, 1), (160, 10)])
def test_only_episodes_that_begin_are_begun(streams_of, block):
    """To begin one may cost more than a step."""
    inner, begun = corridor(), []

    def reset(key):
        jax.debug.callback(lambda bits: begun.append(bits), jax.random.bits(key))
        return inner.reset(key)

    environment = inner._replace(reset=reset)
    steps = play(environment, keys_of(range(streams_of)), np.ones((30, streams_of, 2), np.float32))
    jax.effects_barrier()
    count = (steps.step_type == 0).sum(axis=1)
    assert len(begun) == count[0] + sum(-(-several // block) * block for several in count[1:])
    without = play(inner, keys_of(range(streams_of)), np.ones((30, streams_of, 2), np.float32))
    jax.tree.map(np.testing.assert_array_equal, steps, without)


def test_several_sets_of_streams_are_each_as_alone():
    """As those of several seeds in one program."""
    keys = jnp.stack([keys_of(range(4)), keys_of(range(4, 8))])
    actions = np.ones((20, 4, 2), np.float32)
    together = jax.vmap(lambda keys: play_in_scan(corridor(), keys, actions))(keys)
    for index in range(2):
        alone = play(corridor(), keys[index], actions)
        jax.tree.map(lambda a, b, i=index: np.testing.assert_array_equal(a[i], b), together, alone)


def test_a_program_is_compiled_once_where_types_are_weak():
    """That of a first state is that of all others."""
    inner = corridor()

    def reset(key):
        state, observation = inner.reset(key)
        return state._replace(steps=jax.random.bernoulli(key) * 0), observation

    def step(state, action, key):
        state, output = inner.step(state, action, key)
        return state._replace(steps=state.steps + jnp.int32(0)), output

    environment = inner._replace(reset=reset, step=step)
    step = jax.jit(functools.partial(streams.step, environment))
    state, _ = streams.reset(environment, keys_of([0, 1]))
    for _ in range(8):
        state, _ = step(state, np.ones((2, 2), np.float32))
    assert step._cache_size() == 1


def test_a_vector_has_the_episodes_of_a_compiled_program():
    environment = functional.make("jax:CartPole-v1")
    vector = environments.make("jax:CartPole-v1", seed=7, num_envs=4)
    seeds = [environments.derive_seed(7, i) for i in range(4)]
    actions = np.random.default_rng(0).integers(2, size=(120, 4))
    compiled = play(environment, keys_of(seeds), actions)
    found = [vector.reset(), *map(vector.step, actions)]
    assert (compiled.step_type == 2).any()
    for t, timestep in enumerate(found):
        for one, other in zip(timestep, compiled, strict=True):
            np.testing.assert_allclose(one, other[t], rtol=1e-5, atol=1e-6)


def test_a_single_environment_is_the_first_of_a_vector():
    one = environments.make("jax:Acrobot-v1", seed=3, max_episode_steps=9)
    many = environments.make("jax:Acrobot-v1", seed=3, num_envs=3, max_episode_steps=9)
    first, row = one.reset(), many.reset()
    assert (first.reward, first.discount) == (None, None)
    for action in np.random.default_rng(0).integers(3, size=25):
        first, row = one.step(action), many.step(np.full(3, action))
        assert int(first.step_type) == row.step_type[0]
        np.testing.assert_allclose(first.observation, row.observation[0], rtol=1e-5, atol=1e-6)
        if not first.first():
            assert (first.reward, first.discount) == (row.reward[0], row.discount[0])
    assert many.step(np.zeros(3, int)).reward.dtype == np.float32


def test_another_reset_begins_other_episodes_and_a_seed_repeats_them():
    vectors = [environments.make("jax:Pendulum-v1", seed=1, num_envs=2) for _ in range(2)]
    begun = [[vector.reset().observation for _ in range(3)] for vector in vectors]
    np.testing.assert_array_equal(*begun)
    assert len(np.unique(np.stack(begun[0]), axis=0)) == 3
    assert not np.array_equal(begun[0][0][0], begun[0][0][1])


def test_what_a_vector_gave_stays_as_it_was():
    vector = environments.make("jax:MountainCar-v0", seed=1, num_envs=2)
    first = vector.reset()
    kept = first.observation.copy()
    for _ in range(3):
        vector.step(np.array([2, 2]))
    np.testing.assert_array_equal(first.observation, kept)
    first.observation[...] = 0.0  # The caller's own.


def test_a_limit_truncates_what_has_not_terminated():
    def ends(limit):
        steps = play(transforms.time_limit(corridor((3,)), limit), keys_of([0]), np.ones((8, 1, 2)))
        last = steps.step_type[:, 0] == 2
        return last.nonzero()[0][0], steps.discount[last, 0][0]

    assert ends(2) == (2, 1.0)
    assert ends(3) == (3, 0.0)
    assert ends(4) == (3, 0.0)


@pytest.mark.parametrize(
    ("mode", "action", "taken"),
    [("clip", [9.0, -9.0], 2.0), ("rescale", [0.5, -9.0], 0.5), ("rescale", [0.0, 0.0], 2.0)],
)
def test_actions_are_bounded_as_elsewhere(mode, action, taken):
    environment = transforms.bound_actions(corridor(), mode)
    state, _ = environment.reset(jax.random.key(0))
    _, outcome = environment.step(state, jnp.array(action), jax.random.key(0))
    assert outcome.reward == pytest.approx(taken)
    assert environment.actions.minimum == (-1.0 if mode == "rescale" else -2.0)


def test_rewards_are_clipped_and_the_spec_says_so():
    vector = environments.make("jax:Pendulum-v1", seed=0, num_envs=3, reward_clip=0.5)
    vector.reset()
    assert vector.step(np.zeros((3, 1))).reward.min() >= -0.5
    assert vector.reward_spec().minimum == -0.5


OWN = """
from tests_of_streams import corridor
def maze(*, length: int = 4): return corridor((length,))
def bad(): return 3
def breaks(): return corridor((9,), nan_at=2)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    import sys

    (tmp_path / "own_functional.py").write_text(OWN)
    monkeypatch.setitem(sys.modules, "tests_of_streams", sys.modules[__name__])
    monkeypatch.syspath_prepend(tmp_path)


def test_one_of_your_own_has_an_id(own):
    vector = environments.make("jax:own_functional:maze", seed=0, num_envs=2, length=6)
    vector.reset()
    kinds = [vector.step(np.zeros((2, 2))).step_type[0] for _ in range(7)]
    assert kinds == [1, 1, 1, 1, 1, 2, 0]


@pytest.mark.parametrize(
    ("id", "options", "error", "words"),
    [
        ("jax:CartPol-v1", {}, environments.UnknownEnvironmentError, "jax:CartPole-v1"),
        ("jax:no_such:maze", {}, environments.UnknownEnvironmentError, "cannot be imported"),
        ("jax:own_functional:none", {}, environments.UnknownEnvironmentError, "no function none"),
        ("jax:own_functional:bad", {}, environments.InvalidOptionError, "FunctionalEnvironment"),
        ("jax:own_functional:maze", {"size": 3}, environments.InvalidOptionError, "length"),
        ("jax:Pendulum-v1", {"g": "heavy"}, environments.InvalidOptionError, "number"),
        ("jax:Pendulum-v1", {"reward_clip": 0}, environments.InvalidOptionError, "reward_clip"),
        ("jax:Pendulum-v1", {"actions": "wrap"}, environments.InvalidOptionError, "rescale"),
        ("jax:Pendulum-v1", {"max_episode_steps": 0}, environments.InvalidOptionError, "least 1"),
        ("jax:Pendulum-v1", {"episodic_life": True}, environments.InvalidOptionError, "life"),
        ("jax:Pendulum-v1", {"render_mode": "rgb_array"}, environments.InvalidOptionError, "rend"),
    ],
)
def test_what_cannot_be_made_is_said_in_a_line(own, id, options, error, words):
    with pytest.raises(error, match=words) as caught:
        environments.make(id, seed=0, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("id", "action"),
    [
        ("jax:CartPole-v1", np.array([0, 2])),
        ("jax:CartPole-v1", np.array([0.0, 1.0])),
        ("jax:CartPole-v1", np.array([0])),
        ("jax:Pendulum-v1", np.array([[0.0], [2.5]])),
        ("jax:Pendulum-v1", np.array([[0.0], [np.nan]])),
    ],
)
def test_an_action_that_does_not_fit_is_refused(id, action):
    vector = environments.make(id, seed=0, num_envs=2)
    vector.reset()
    with pytest.raises(environments.InvalidActionError):
        vector.step(action)


def test_a_reward_that_is_no_number_is_named(own):
    vector = environments.make("jax:own_functional:breaks", seed=0, num_envs=2)
    vector.reset()
    vector.step(np.zeros((2, 2)))
    with pytest.raises(environments.InvalidRewardError, match=r"environment 0 of 2: jax:own.*nan"):
        vector.step(np.zeros((2, 2)))


@pytest.mark.parametrize("declared", [jnp.float32, jnp.complex64])
def test_complex_observations_are_refused_in_one_line(declared):
    wave = functional.FunctionalEnvironment(
        lambda key: ((), jnp.ones(2, jnp.complex64)),
        lambda state, action, key: (state, None),
        specs.Array((2,), declared, "wave"),
        specs.DiscreteArray(2),
    )
    with pytest.raises(environments.UnsupportedSpaceError, match=r"no complex.*complex64\["):
        functional.FunctionalVector(wave, "wave", [0]).reset()
