"""A vector gives, row by row and step by step, what each of its environments alone would give."""

import sys

import dm_env
import numpy as np
import pytest
import tree

from troupe import environments
from troupe.environments import Vector, derive_seed, fakes
from troupe.environments.batched import BatchedVector
from troupe.environments.stacking import StackFrames

FIRST, MID, LAST = (int(kind) for kind in dm_env.StepType)


def random_actions(spec, n, steps):
    random = np.random.default_rng(0)

    def draw(leaf):
        if leaf.dtype.kind == "f":
            return random.uniform(-1, 1, (n, *leaf.shape)).astype(leaf.dtype)
        return random.integers(0, leaf.maximum, (n, *leaf.shape), leaf.dtype, endpoint=True)

    return [tree.map_structure(draw, spec) for _ in range(steps)]


def assert_rows_equal(vectorised, timesteps):
    """Compares a vector's time step with those of single environments."""
    for i, single in enumerate(timesteps):
        assert vectorised.step_type[i] == single.step_type
        assert vectorised.reward[i] == (0.0 if single.first() else single.reward)
        assert vectorised.discount[i] == (1.0 if single.first() else single.discount)
        row = tree.map_structure(lambda leaf, i=i: leaf[i], vectorised.observation)
        tree.map_structure(np.testing.assert_array_equal, row, single.observation)


@pytest.mark.parametrize(
    ("id", "n", "steps", "options"),
    [
        ("CartPole-v1", 3, 150, {}),
        ("CartPole-v1", 9, 300, {}),
        ("CartPole-v0", 20, 60, {"max_episode_steps": 13}),
        ("CartPole-v1", 8, 100, {"sutton_barto_reward": True, "reward_clip": 0.5}),
        ("Pendulum-v1", 3, 20, {}),
        ("LunarLander-v3", 3, 150, {}),
        ("HalfCheetah-v5", 3, 10, {}),
        ("ALE/Pong-v5", 3, 20, {}),
        ("fake/ragged", 3, 100, {}),
        ("fake/nested", 3, 30, {}),
    ],
)
def test_same_seeds_give_the_same_episodes_as_single_environments(id, n, steps, options):
    vector = environments.make(id, seed=5, num_envs=n, **options)
    assert isinstance(vector, BatchedVector) == (id.startswith("CartPole") and n >= 8)
    singles = [environments.make(id, seed=derive_seed(5, i), **options) for i in range(n)]
    assert environments.make_spec(vector) == environments.make_spec(singles[0])
    for t, actions in enumerate(random_actions(vector.action_spec(), n, steps)):
        if t % 50 == 0:
            assert_rows_equal(vector.reset(), [single.reset() for single in singles])
        rows = [tree.map_structure(lambda leaf, i=i: leaf[i], actions) for i in range(n)]
        timesteps = [single.step(row) for single, row in zip(singles, rows, strict=True)]
        assert_rows_equal(vector.step(actions), timesteps)
    vector.close()


def test_the_first_environment_has_the_seed_itself():
    assert derive_seed(42, 0) == 42
    single, vector = (environments.make("CartPole-v1", seed=42, num_envs=n) for n in (None, 4))
    np.testing.assert_array_equal(vector.reset().observation[0], single.reset().observation)


def test_derived_seeds_are_apart():
    derived = {derive_seed(seed, index) for seed in range(20) for index in range(50)}
    assert len(derived) == 1000


def test_episodes_of_different_lengths():
    """Written out: lengths 1, 2 and 3, the second truncated."""
    vector = Vector(
        [
            fakes.discrete(seed=length, episode_lengths=(length,), truncated=(length == 2,))
            for length in (1, 2, 3)
        ]
    )
    steps = [vector.reset(), *(vector.step(np.zeros(3, int)) for _ in range(4))]
    assert [step.step_type.tolist() for step in steps] == [
        [FIRST, FIRST, FIRST],
        [LAST, MID, MID],
        [FIRST, LAST, MID],
        [LAST, FIRST, LAST],
        [FIRST, MID, FIRST],
    ]
    assert [step.discount.tolist() for step in steps] == [
        [1, 1, 1],
        [0, 1, 1],
        [1, 1, 1],
        [0, 1, 0],
        [1, 1, 1],
    ]
    assert [step.reward[step.first()].tolist() for step in steps] == [
        [0, 0, 0],
        [],
        [0],
        [0],
        [0, 0],
    ]
    assert (steps[1].last() == [True, False, False]).all()


@pytest.mark.parametrize("n", [2, 10])
def test_types_and_shapes(n):
    vector = environments.make("CartPole-v1", seed=0, num_envs=n)
    for step in (vector.reset(), vector.step([0, 1] * (n // 2))):
        assert (step.step_type.dtype, step.step_type.shape) == (np.int32, (n,))
        assert (step.reward.dtype, step.reward.shape) == (np.float32, (n,))
        assert (step.discount.dtype, step.discount.shape) == (np.float32, (n,))
        assert (step.observation.dtype, step.observation.shape) == (np.float32, (n, 4))
        assert step.observation.flags.c_contiguous


@pytest.mark.parametrize(
    ("id", "n"), [("CartPole-v1", 2), ("CartPole-v1", 9), ("fake/nested", 2), ("fake/image", 2)]
)
def test_what_was_returned_never_changes(id, n):
    vector = environments.make(id, seed=0, num_envs=n)
    kept = [vector.reset()]
    for actions in random_actions(vector.action_spec(), n, 15):
        kept.append(vector.step(actions))
        before = tree.map_structure(np.copy, kept[0])
        tree.map_structure(np.testing.assert_array_equal, before, kept[0])
    pointers = {leaf.__array_interface__["data"][0] for step in kept for leaf in tree.flatten(step)}
    assert len(pointers) == sum(len(tree.flatten(step)) for step in kept)


def test_resetting_the_vector_resets_all():
    vector = environments.make("fake/ragged", seed=0, num_envs=4)
    vector.reset()
    vector.step(np.zeros(4, int))
    assert vector.reset().first().all()
    assert not vector.step(np.zeros(4, int)).first().any()


@pytest.mark.parametrize("n", [2, 8])
def test_the_first_step_of_a_fresh_vector_is_first(n):
    vector = environments.make("CartPole-v1", seed=0, num_envs=n)
    assert vector.step([0] * n).first().all()


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("actions", [[0, 0], [[0], [0], [0]], 0])
def test_actions_of_another_shape_are_refused(n, actions):
    vector = environments.make("CartPole-v1", seed=0, num_envs=n)
    vector.reset()
    with pytest.raises(environments.InvalidActionError, match=rf"must have shape \({n},\)"):
        vector.step(actions)


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("bad", [2, -1, 0.5])
def test_an_action_that_does_not_fit_names_the_environment(n, bad):
    vector = environments.make("CartPole-v1", seed=0, num_envs=n)
    vector.reset()
    with pytest.raises(environments.InvalidActionError) as raised:
        vector.step([0, bad] + [0] * (n - 2))
    fault = "CartPole-v1: action must be an integer from 0 to 1, got "
    assert str(raised.value).startswith(f"environment {'0' if bad == 0.5 else '1'} of {n}: {fault}")


def test_environments_stepped_as_one_take_actions_that_are_no_arrays_of_integers():
    ours, theirs = (environments.make("CartPole-v1", seed=0, num_envs=8) for _ in range(2))
    for vector in (ours, theirs):
        vector.reset()
    for _ in range(3):
        left, right = ours.step([True, False] * 4), theirs.step(np.array([1, 0] * 4, np.uint8))
        np.testing.assert_array_equal(left.observation, right.observation)


def test_what_draws_images_is_stepped_one_by_one():
    with environments.make("CartPole-v1", seed=0, num_envs=8) as vector:
        assert isinstance(vector, BatchedVector)
        with pytest.raises(environments.InvalidOptionError, match="render_mode='rgb_array'"):
            vector.render_frame(7)
    with environments.make("CartPole-v1", seed=0, num_envs=8, render_mode="rgb_array") as vector:
        vector.reset()
        assert not isinstance(vector, BatchedVector)
        assert vector.render_frame(7).ndim == 3


def test_nested_actions_of_another_structure_are_refused():
    vector = environments.make("fake/nested", seed=0, num_envs=2)
    vector.reset()
    with pytest.raises(environments.InvalidActionError, match="structure"):
        vector.step({"push": np.zeros((2, 2), np.float32)})
    with pytest.raises(environments.InvalidActionError, match="shapes"):
        vector.step({"push": np.zeros((2, 2), np.float32), "choice": np.zeros(3, int)})


@pytest.mark.parametrize("reward", [np.nan, np.inf, 1e39])
@pytest.mark.parametrize("stack", [False, True])
def test_a_foreign_reward_that_is_not_finite_is_named(reward, stack):
    """Environments that `make` did not make have nothing else that looks at their rewards."""

    class Careless(fakes.Match):
        def step(self, action):
            return super().step(action)._replace(reward=reward)

    both = [fakes.Match(seed=0), Careless(seed=1)]
    vector = Vector([StackFrames(one, 2) for one in both] if stack else both)
    vector.reset()
    with pytest.raises(environments.InvalidRewardError) as raised:
        vector.step(np.zeros(2, np.int32))
    assert str(raised.value).startswith(f"environment 1 of 2: Careless: reward {reward}; ")


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["array", "nest"])
def test_an_observation_that_is_not_finite_is_named(number, kind):
    """Of any environment: what is learned from it is no number either."""

    class Careless(fakes.Fake):
        def step(self, action):
            timestep = super().step(action)
            leaves = tree.flatten(timestep.observation)
            real = next(leaf for leaf in leaves if leaf.dtype.kind == "f")
            real.reshape(-1)[-1] = number
            return timestep

    id = "fake/discrete" if kind == "array" else "fake/nested"
    spec = environments.make_spec(environments.make(id, seed=0))
    vector = Vector([fakes.Fake(spec, seed=0), Careless(spec, seed=1)])
    vector.reset()
    actions = tree.map_structure(lambda one: np.stack([one.generate_value()] * 2), spec.actions)
    with pytest.raises(environments.InvalidObservationError) as raised:
        vector.step(actions)
    message = str(raised.value)
    assert message.startswith("environment 1 of 2: Careless: ")
    assert f" holds {number}; observations must be finite" in message


def test_the_moment_of_an_observation_that_is_not_finite_is_named():
    single = environments.make("CartPole-v1", seed=0)
    vector = Vector([single])
    vector.reset()
    vector.step(np.zeros(1, np.int32))
    single.unwrapped.unwrapped.state = np.full(4, np.nan)
    with pytest.raises(environments.InvalidObservationError, match="nan at step 2 of episode 1;"):
        vector.step(np.zeros(1, np.int32))


def test_large_numbers_are_finite():
    class Large(fakes.Fake):
        def reset(self):
            timestep = super().reset()
            return timestep._replace(observation=np.full_like(timestep.observation, 1e38))

    spec = environments.make_spec(fakes.discrete(seed=0))
    assert Vector([Large(spec, seed=0)]).reset().observation.max() > 1e37


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_environment_that_would_end_the_process_is_named(method):
    class Ending(fakes.Match):
        def end(self, *arguments):
            sys.exit(3)

    ending = Ending(seed=0)
    vector = Vector([fakes.Match(seed=0), ending])
    if method == "step":
        vector.reset()
    setattr(ending, method, ending.end)
    vector._steps[1] = ending.step
    with pytest.raises(environments.EnvironmentExitError, match=r"1 of 2: Ending called sys.exit"):
        vector.reset() if method == "reset" else vector.step(np.zeros(2, np.int32))


def test_environments_with_different_specs_are_refused():
    pair = [fakes.discrete(seed=0), fakes.discrete(seed=0, num_actions=7)]
    with pytest.raises(environments.InvalidOptionError, match="actions of environment 1 differ"):
        Vector(pair)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_a_vector_has_at_least_one_environment(num_envs):
    with pytest.raises(environments.InvalidOptionError, match="num_envs"):
        environments.make("CartPole-v1", seed=0, num_envs=num_envs)
    with pytest.raises(environments.InvalidOptionError, match="at least 1"):
        Vector([])


def test_closing_closes_all():
    closed = []

    class Closing(fakes.Match):
        def close(self):
            closed.append(self)

    with Vector([Closing(seed=0), Closing(seed=1)]) as vector:
        vector.reset()
    assert closed == list(vector.environments)
