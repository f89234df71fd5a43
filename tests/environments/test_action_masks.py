"""Masks of legal actions: where environments give them, what is refused, and who leaves them be."""

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe import environments
from troupe.environments import action_masks, fakes, functional
from troupe.environments.functional import streams
from troupe.environments.functional.hosted import keys_of

from . import walls

spaces = gymnasium.spaces
MASK = action_masks.make_spec(3)


class Given(gymnasium.Env):
    """Gives what it is told to: spaces, and a mask in `info` or in the observation."""

    def __init__(self, infos=(), masks=None, actions=None, entries=(), length=2):
        self.action_space = actions or spaces.Discrete(3)
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.entries = dict(entries)
        if self.entries:
            own = {"seen": self.observation_space} if "seen" not in self.entries else {}
            self.observation_space = spaces.Dict({**own, **self.entries})
        self.infos, self.masks, self.length = infos, masks, length
        self.seeds, self.t = [], 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return self._see()

    def step(self, action):
        self.t += 1
        seen, info = self._see()
        return seen, 0.0, self.t == self.length, False, info

    def _see(self):
        seen = np.full(2, self.t / 10, np.float32)
        if self.entries:
            seen = {"seen": seen, "action_mask": np.array(self.masks[self.t])}
        info = {"action_mask": self.infos[self.t]} if self.infos else {}
        return seen, {key: mask for key, mask in info.items() if mask is not None}


def vector(*given, **options):
    one = environments.GymnasiumEnvironment(Given(*given, **options), seed=7, name="mine")
    return environments.Vector([one])


def test_a_mask_in_info_stands_beside_the_observation():
    given = Given([[1, 0, 1], [0, 1, 0], None])
    environment = environments.GymnasiumEnvironment(given, seed=7)
    spec = environments.make_spec(environment)
    assert {*spec.observations} == {"observation", "action_mask"}
    assert spec.action_mask == MASK
    assert spec.observations["observation"].shape == (2,)
    first, mid, last, again = environment.step(0), *(environment.step(0) for _ in range(3))
    kinds = [step.step_type for step in (first, mid, last, again)]
    assert kinds == [*dm_env.StepType, dm_env.StepType.FIRST]
    masks = [step.observation["action_mask"].tolist() for step in (first, mid, last)]
    # Nothing is done at the end, where a mask may be missing.
    assert masks == [[True, False, True], [False, True, False], [True] * 3]
    assert first.observation["observation"].tolist() == [0.0, 0.0]
    # The specs are asked for before the first reset, which is the only one with the seed.
    assert given.seeds == [7, None]


class Methodical(Given):
    """With the method that sb3-contrib asks for, which a wrapper may have as well."""

    def action_masks(self):
        return [self.t != 1, True, False]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_method_that_gives_masks_is_asked_at_every_step(wrapped):
    given = gymnasium.Wrapper(Methodical()) if wrapped else Methodical()
    environment = environments.GymnasiumEnvironment(given, seed=7)
    assert environments.make_spec(environment).action_mask == MASK
    seen = [environment.reset(), environment.step(0), environment.step(1)]
    masks = [step.observation["action_mask"].tolist() for step in seen]
    assert masks == [[True, True, False], [False, True, False], [True, True, False]]


def test_who_asks_for_no_spec_has_the_same_episodes():
    asked, unasked = (environments.make("Taxi-v4", seed=3) for _ in range(2))
    asked.observation_spec()
    for one, other in zip(
        (asked.reset(), *(asked.step(0) for _ in range(5)), asked.reset()),
        (unasked.reset(), *(unasked.step(0) for _ in range(5)), unasked.reset()),
        strict=True,
    ):
        jax.tree.map(np.testing.assert_array_equal, tuple(one), tuple(other))
    assert asked.observation_spec().keys() == {"observation", "action_mask"}


@pytest.mark.parametrize("dtype", [np.int8, np.float32, bool])
def test_a_mask_in_a_dict_stays_where_it_is(dtype):
    space = spaces.MultiBinary(3) if dtype == np.int8 else spaces.Box(0, 1, (3,), dtype)
    masks = np.array([[1, 0, 1]] * 3, dtype)
    with vector(masks=masks, entries={"action_mask": space}) as environment:
        spec = environments.make_spec(environment)
        assert {*spec.observations} == {"seen", "action_mask"}
        assert spec.action_mask.shape == (3,)
        assert action_masks.visible(spec.observations).shape == (2,)
        assert environment.reset().observation["action_mask"].tolist() == [[1, 0, 1]]


class OfDeepMind(dm_env.Environment):
    """A `dm_env` environment whose observations have a mask."""

    def __init__(self, legal=True):
        self.legal = legal

    def observation_spec(self):
        return {"board": specs.Array((2,), np.float64), "action_mask": specs.Array((3,), bool)}

    def action_spec(self):
        return specs.DiscreteArray(3)

    def reset(self):
        return dm_env.restart(self._see())

    def step(self, action):
        return dm_env.transition(0.0, self._see())

    def _see(self):
        return {"board": np.zeros(2), "action_mask": np.array([self.legal, False, False])}


def test_a_dm_env_environment_has_a_mask_too():
    with environments.Vector([environments.Conform(OfDeepMind(), name="mine")]) as environment:
        assert environments.make_spec(environment).action_mask.dtype == bool
        step = environment.step([0])
        assert step.observation["action_mask"].tolist() == [[True, False, False]]
    with pytest.raises(environments.InvalidObservationError, match="allows no action"):
        environments.Vector([OfDeepMind(legal=False)]).reset()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"infos": [[1, 1]] * 3}, r"int64\[2\]; a mask of 3 legal actions"),
        ({"infos": [[1, 0, -1e9]] * 3}, "holds -1000000000.0; it is 1 where"),
        ({"infos": [[1] * 3] * 3, "actions": spaces.Box(-1, 1, (3,))}, "only choices can be"),
        (
            {"infos": [[1] * 3] * 3, "actions": spaces.Dict({"a": spaces.Discrete(3)})},
            "that are a nest; only choices can be",
        ),
        (
            {"infos": [[1] * 3] * 3, "actions": spaces.MultiDiscrete([2, 2])},
            r"int64\[3\]; a mask of 4 legal actions has the shape \(4,\)",
        ),
        (
            {
                "masks": np.ones((3, 3), np.int8),
                "entries": {"action_mask": spaces.MultiBinary(3)},
                "actions": spaces.MultiDiscrete([2, 2]),
            },
            r"of shape \(3,\); a mask of 4 legal actions has the shape \(4,\)",
        ),
        (
            {"infos": [[1, 1, 1, 0, 0]] * 3, "actions": spaces.MultiDiscrete([3, 2])},
            "action_mask allows no action",
        ),
        (
            {"masks": np.ones((3, 4)), "entries": {"action_mask": spaces.MultiBinary(4)}},
            r"of shape \(4,\); a mask of 3 legal actions has the shape \(3,\)",
        ),
        (
            {"entries": {"seen": spaces.Dict({"action_mask": spaces.MultiBinary(3)})}},
            "an entry of the outermost dict",
        ),
        ({"infos": [[0, 0, 0]] * 3}, "environment 0 of 1: mine: action_mask allows no action"),
    ],
)
def test_what_is_no_mask_is_refused_in_one_line(options, words):
    with pytest.raises(environments.EnvironmentFault, match=words) as refusal:
        vector(**options).reset()
    assert "\n" not in str(refusal.value)
    assert "mine" in str(refusal.value)


@pytest.mark.parametrize(
    "given",
    [[1, 0, 1, 0, 1], ([1, 0, 1], [0, 1]), [np.array([True, False, True]), np.bool_([0, 1])]],
)
def test_the_masks_of_several_choices_stand_one_behind_the_other(given):
    """As sb3-contrib has them, or as a tuple by which Gymnasium's spaces sample."""
    with vector([given] * 3, actions=spaces.MultiDiscrete([3, 2])) as environment:
        assert environments.make_spec(environment).action_mask == action_masks.make_spec(5)
        seen = environment.reset().observation["action_mask"]
        assert seen.tolist() == [[True, False, True, False, True]]


def test_one_mask_for_each_choice_by_hand():
    actions = specs.BoundedArray((2,), np.int32, [0, 5], [2, 6])
    mask = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]], np.int8)
    assert action_masks.num_values(actions) == (3, 2)
    assert [part.tolist() for part in action_masks.split(mask[0], actions)] == [[1, 0, 1], [0, 1]]
    right, wrong = np.array([[2, 6], [1, 5]]), np.array([[1, 6], [1, 6]])
    assert action_masks.allowed(mask, actions, right).tolist() == [True, True]
    assert action_masks.allowed(mask, actions, wrong).tolist() == [False, False]
    random = np.random.default_rng(0)
    drawn = action_masks.draw(np.repeat(mask[:1], 400, axis=0), actions, random)
    assert drawn.dtype == np.int32
    assert {*map(tuple, drawn.tolist())} == {(0, 6), (2, 6)}
    assert (drawn[:, 0] == 0).mean() == pytest.approx(0.5, abs=0.1)
    one = specs.DiscreteArray(3, np.int32)
    assert action_masks.allowed(mask[:, :3], one, np.int32([2, 0])).tolist() == [True, False]
    assert action_masks.draw(mask[1:, :3], one, random).tolist() == [1]
    # A fake of such a spec refuses what it does not allow.
    fake = fakes.from_spec(
        environments.EnvironmentSpec(
            action_masks.add_to_spec(specs.Array((2,), np.float32), 5),
            actions,
            environments.specs.reward_spec(),
            environments.specs.discount_spec(),
        ),
        seed=0,
    )
    for _ in range(20):
        shown = fake.reset().observation["action_mask"]
        fake.step(action_masks.draw(shown[None], actions, random)[0])
        parts = action_masks.split(fake.reset().observation["action_mask"], actions)
        if not parts[0].all():
            with pytest.raises(environments.InvalidActionError, match=r"illegal; legal are \[\["):
                fake.step([int(parts[0].argmin()), 5 + int(parts[1].argmax())])


def test_a_mask_that_comes_or_goes_is_refused():
    environment = vector([[1] * 3, None, [1] * 3])
    environment.reset()
    with pytest.raises(ValueError, match="info has no action_mask"):
        environment.step([0])
    environment = vector([None, [1] * 3, [1] * 3])
    environment.reset()
    with pytest.raises(ValueError, match=r"has an action_mask at step 1 .* first reset had none"):
        environment.step([0])


def test_nothing_need_be_legal_at_the_end_of_an_episode():
    environment = vector([[1, 0, 0], [1, 0, 0], [0, 0, 0]])
    environment.reset()
    environment.step([0])
    last = environment.step([0])
    assert last.step_type == dm_env.StepType.LAST
    assert not last.observation["action_mask"].any()


def test_frames_are_stacked_and_masks_are_not():
    given = Given([[1, 0, 1], [0, 1, 0], None])
    stacked = environments.StackFrames(environments.GymnasiumEnvironment(given, seed=0), 3)
    spec = environments.make_spec(stacked)
    assert spec.observations["observation"].stack == 3
    assert spec.action_mask == MASK
    stacked.reset()
    step = stacked.step(0)
    assert step.observation["action_mask"].tolist() == [False, True, False]
    assert np.allclose(step.observation["observation"], [[0.0, 0.0, 0.1]] * 2)
    again = environments.Conform(stacked, name="mine").observation_spec()["observation"]
    assert again == spec.observations["observation"]


def test_a_fake_has_the_masks_of_its_spec_and_refuses_what_they_do_not_allow():
    spec = environments.make_spec(environments.make("fake/match", seed=0, masked=True))
    fake = fakes.from_spec(spec, seed=0)
    assert environments.make_spec(fake) == spec
    allowed = set()
    for _ in range(50):
        mask = fake.reset().observation["action_mask"]
        allowed.add(int(mask.sum()))
        fake.step(int(mask.argmax()))
        mask = fake.reset().observation["action_mask"]
        if not mask.all():
            with pytest.raises(environments.InvalidActionError, match="is illegal; legal are"):
                fake.step(int(mask.argmin()))
    assert 0 not in allowed
    assert len(allowed) > 1


def test_a_match_that_is_masked_refuses_what_is_illegal():
    environment = environments.make("fake/match", seed=0, masked=True, num_values=3)
    refused = 0
    for _ in range(20):
        mask = environment.reset().observation["action_mask"]
        if not mask.all():
            refused += 1
            with pytest.raises(environments.InvalidActionError, match="illegal"):
                environment.step(int(mask.argmin()))
    assert refused > 3
    with pytest.raises(environments.InvalidOptionError, match="take one of"):
        environments.make("fake/match", seed=0, masked=True, continuous=True)


def test_walls_refuse_what_their_masks_do_not_allow():
    environment = environments.make(f"{walls.__name__}:Walls-v0", seed=0)
    mask = environment.reset().observation["action_mask"]
    with pytest.raises(RuntimeError, match="illegal action"):
        environment.step(int(mask.argmin()))


def test_plain_environments_have_none():
    for id in ("CartPole-v1", "jax:CartPole-v1", "fake/nested", "Pendulum-v1"):
        assert environments.make_spec(environments.make(id, seed=0)).action_mask is None


def played(choose, episodes=200):
    """Rewards of whole games of Nim, by a player `choose(left, key)`."""
    environment = functional.make("jax:Nim-v0")

    def step(carry, key):
        begun, timestep = carry
        left = timestep.observation["observation"].argmax(-1)
        action = jax.vmap(choose)(left, jax.random.split(key, len(left)))
        illegal = ~jnp.take_along_axis(
            timestep.observation["action_mask"], action[:, None], axis=1
        ).all(1)
        begun, timestep = streams.step(environment, begun, action.astype(jnp.int32))
        return (begun, timestep), (timestep, illegal)

    begun = streams.reset(environment, keys_of(range(episodes)))
    keys = jax.random.split(jax.random.key(0), 12)
    _, (steps, illegal) = jax.lax.scan(step, begun, keys)
    return jax.tree.map(np.asarray, (steps, illegal))


def test_nim_is_won_by_who_leaves_a_multiple_of_four():
    steps, illegal = played(lambda left, key: jnp.maximum(left % 4, 1) - 1)
    ended = steps.step_type == dm_env.StepType.LAST
    assert ended.any(0).all()
    assert (steps.reward[ended] == 1.0).all()
    assert (steps.reward[~ended] == 0.0).all()
    assert (steps.discount[ended] == 0.0).all()
    assert not illegal[steps.step_type != dm_env.StepType.FIRST].any()


def test_a_drawn_game_of_nim_is_won_now_and_then_and_illegal_moves_lose():
    steps, illegal = played(lambda left, key: jax.random.randint(key, (), 0, 3))
    ended = steps.step_type == dm_env.StepType.LAST
    assert 0.2 < (steps.reward[ended] == 1.0).mean() < 0.8
    acted = steps.step_type != dm_env.StepType.FIRST
    assert illegal[acted].any()
    assert (steps.reward[illegal & acted] == -1.0).all()
    assert ended[illegal & acted].all()
