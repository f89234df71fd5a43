"""Data: its rows are looked at, its items are those of any replay, and its draws repeat."""

import dataclasses
import itertools

import dm_env
import jax
import numpy as np
import pytest
from dm_env import StepType, specs

from troupe import environments
from troupe.agents.replay import EmbeddedReplay, Episodes, ReplaySpec, Rollouts, Sequences
from troupe.agents.replay import Transitions as T
from troupe.agents.replay.offline import Dataset, OfflineReplay, history, of_episodes
from troupe.agents.replay.offline import Episode as Played
from troupe.environments.specs import StackedArray

from .episodes import EXTRAS, SPEC, Episode, play_one, play_vector, timesteps

ITEMS = [T(1), T(3, 0.9), Sequences(4, 2), Episodes(12)]


def episodes(seed, count, longest=9):
    random = np.random.default_rng(seed)
    return [
        Episode(
            first=100 * i,
            rewards=tuple(random.integers(-9, 9, random.integers(1, longest + 1)).tolist()),
            terminates=bool(random.random() < 0.5),
        )
        for i in range(count)
    ]


def dataset(found):
    """As the adders of the other replays would be given them."""

    def played(episode):
        rows = timesteps(episode)
        seen = np.stack([row.observation for row in rows])
        outcomes = [(row.reward, row.discount) for row in rows[1:]]
        reward, discount = np.array(outcomes, np.float32).T
        return Played(seen, seen[:-1, 0].astype(np.int32), reward, discount)

    return of_episodes(SPEC.observations, SPEC.actions, map(played, found), "these episodes")


def spec(item, batch_size=6, **more):
    return ReplaySpec(item, batch_size=batch_size, max_size=1000, **more)


def items(replay, draws=4000):
    """What is drawn, by key; every item there is, all but surely."""
    found = {}
    for _ in range(draws // replay.spec.batch_size):
        sample = replay.sample()
        for i, key in enumerate(sample.info.keys.tolist()):
            found[key] = jax.tree.map(lambda x, i=i: x[i], sample.data)
    return found


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_items_are_those_of_a_replay_that_was_written_to(item):
    found = episodes(0, 12)
    written = EmbeddedReplay(spec(item), SPEC, EXTRAS, seed=3)
    play_one(written.adder(), *found)
    offline = OfflineReplay(dataset(found), spec(item), SPEC, seed=3)
    assert len(offline) == len(written)
    expected, drawn = items(written), items(offline)
    assert len(drawn) == len(offline)
    for key, one in drawn.items():
        equal(one._replace(extras=()), expected[key]._replace(extras=()))
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), offline.sample(2))
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), offline.sample_shapes(2))


def make(seed=5, **options):
    return OfflineReplay(dataset(episodes(1, 20)), spec(T(1)), SPEC, seed=seed, **options)


def test_batch_k_follows_from_the_seed_and_k():
    whole, again, fused = make(), make(), make()
    first = [whole.sample() for _ in range(6)]
    assert fused.sample(4).info.keys.tolist() == [one.info.keys.tolist() for one in first[:4]]
    again.seek(4)
    equal(again.sample(2), jax.tree.map(lambda *x: np.stack(x), *first[4:]))
    restored = make()
    restored.restore(whole.save())
    equal(restored.sample(), whole.sample())
    assert make(seed=6).sample().info.keys.tolist() != first[0].info.keys.tolist()


def test_a_gang_draws_what_one_process_would():
    whole, shares = make(), [make(share=(rank, 3)) for rank in range(3)]
    for one in shares:
        assert one.sample_shapes().data.reward.shape == (2,)
    for _ in range(3):
        joined = [one.sample(2) for one in shares]
        equal(jax.tree.map(lambda *x: np.concatenate(x, axis=1), *joined), whole.sample(2))
    assert shares[0].sampled == whole.sampled == 6 * 6


def test_draws_are_uniform_and_come_to_an_end():
    replay = make(num_batches=3000)
    keys = replay.sample(3000).info.keys.ravel()
    counts = np.bincount(keys, minlength=len(replay))
    assert counts.min() > 0
    expected = len(keys) / len(replay)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < len(replay) + 5 * (2 * len(replay)) ** 0.5
    assert not replay.can_sample()
    with pytest.raises(ValueError, match="3000 of 3000 batches are drawn"):
        replay.sample()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"item": Rollouts(3)}, "rollouts of its own policy"),
        ({"priority_exponent": 0.6}, "drawn uniformly"),
        ({"item": Sequences(4, 4), "extras": SPEC.rewards}, "stores beside its actions"),
        ({"share": (0, 4)}, "a batch of 6 cannot be shared equally by 4"),
    ],
)
def test_agents_that_cannot_learn_from_data_are_told_so(change, words):
    asked = {"item": T(1), **change}
    share, extras = asked.pop("share", (0, 1)), asked.pop("extras", ())
    with pytest.raises(ValueError, match=words):
        OfflineReplay(dataset(episodes(0, 3)), spec(**asked), SPEC, extras, share=share)


def other(**changes):
    return SPEC._replace(**changes)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (other(observations=specs.Array((3,), np.float32)), "observations are float32.2., those"),
        (other(observations=specs.Array((2,), np.uint8)), r"those here uint8\[2\]"),
        (other(observations={"a": SPEC.observations}), "those here a dict of"),
        (other(actions=specs.DiscreteArray(3)), "actions are int32.., those here one of 3"),
        (other(actions=specs.Array((), np.float32)), r"those here float32\[\]"),
        (other(actions=specs.BoundedArray((), np.int32, 0, 4)), "from 0 to 4"),
    ],
)
def test_data_of_another_environment_is_refused(found, words):
    with pytest.raises(ValueError, match=words) as refusal:
        OfflineReplay(dataset(episodes(0, 3)), spec(T(1)), found)
    assert "\n" not in str(refusal.value)


def damaged(name, row, value):
    found = dataset(episodes(0, 3))
    arrays = getattr(found, name)
    array = np.array(arrays[0] if isinstance(arrays, tuple) else arrays)
    array[row] = value
    change = {name: (array,) if isinstance(arrays, tuple) else array}
    return lambda: dataclasses.replace(found, **change)


def shorter():
    found = dataset(episodes(0, 3))
    return dataclasses.replace(found, reward=found.reward[:-1])


def without_actions():
    found = dataset(episodes(0, 3))
    return Dataset(found.observations, found.actions, *_rows(found, slice(0, 0)), "nothing")


def cut():
    found = dataset(episodes(0, 3))
    return Dataset(found.observations, found.actions, *_rows(found, slice(0, -1)), "a cut one")


def of_another_dtype():
    found = dataset(episodes(0, 3))
    return dataclasses.replace(found, action=(found.action[0].astype(np.int64),))


def _rows(found, rows):
    leaves = [tuple(x[rows] for x in part) for part in (found.observation, found.action)]
    return *leaves, found.reward[rows], found.discount[rows], found.step_type[rows]


@pytest.mark.parametrize(
    ("make_one", "words"),
    [
        (damaged("observation", 2, np.nan), r"observation at row 2 is \[nan nan\]"),
        (damaged("observation", -1, np.inf), r"observation at row \d+ is \[inf inf\]"),
        (damaged("reward", 0, np.nan), "reward at row 0 is nan"),
        (damaged("discount", 1, 1.5), "discount at row 1 is 1.5"),
        (damaged("step_type", 1, int(StepType.FIRST)), "no whole episodes: row 1"),
        (damaged("step_type", 0, 7), "no whole episodes: row 0 is of step type 7"),
        (shorter, r"arrays have \[\d+, \d+\] rows"),
        (without_actions, "holds no transition"),
        (cut, "no whole episodes"),
        (of_another_dtype, "action is int64.* where its spec says int32"),
        (lambda: dataset([]), "holds no transition"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(make_one, words):
    with pytest.raises(ValueError, match=words) as refusal:
        make_one()
    assert "\n" not in str(refusal.value)


def test_what_the_last_row_says_of_an_action_is_not_looked_at():
    found = dataset(episodes(0, 3))
    last = int(np.flatnonzero(found.step_type == StepType.LAST)[0])
    damaged("reward", last, np.nan)()
    assert found.num_episodes == 3
    assert found.returns.tolist() == [sum(one.rewards) for one in episodes(0, 3)]


@pytest.mark.parametrize("streams", [None, 1, 3])
@pytest.mark.parametrize("item", [T(1), T(3, 0.9), T(5), Sequences(4, 2)], ids=str)
def test_a_replays_episodes_are_told_from_what_it_saved(item, streams):
    parts = [episodes(seed, 8) for seed in range(streams or 1)]
    replay = EmbeddedReplay(spec(item), SPEC, EXTRAS, num_envs=streams)
    if streams is None:
        play_one(replay.adder(), *parts[0])
    else:
        play_vector(replay.adder(), *parts)
    found = history.of_replay(replay.save(), item, SPEC.observations, SPEC.actions, "it")
    played = [one for part in parts for one in part]
    whole = dataset(played)
    told = _by_episode(found)
    for one in _by_episode(whole):
        # Streams end together: the last episode of all but the shortest is cut, or left out.
        matches = [other for other in told if _close(other, one)]
        cut_short = streams == 3 and not matches
        assert matches or cut_short
    assert len(told) >= len(played) - 2 * ((streams or 1) - 1) > 0
    assert all(any(_close(one, other, cut=True) for other in _by_episode(whole)) for one in told)


def _by_episode(found):
    ends = np.flatnonzero(found.step_type == StepType.LAST) + 1
    return [
        [column[begin:end] for column in (*found.observation, *found.action, found.reward)]
        for begin, end in itertools.pairwise([0, *ends])
    ]


def _close(left, right, cut=False):
    """Whether two episodes are the same; with `cut`, whether the first begins the second."""
    length = len(left[0])
    if length > len(right[0]) or (length < len(right[0]) and not cut):
        return False
    rows = length - 1  # The last one has no action.
    return all(np.allclose(a[:rows], b[:rows], atol=1e-4) for a, b in zip(left, right, strict=True))


def test_the_oldest_of_a_full_replay_begin_in_the_midst_of_an_episode():
    small = dataclasses.replace(spec(T(1)), max_size=7)
    replay = EmbeddedReplay(small, SPEC, EXTRAS)
    play_one(replay.adder(), *episodes(2, 6))
    found = history.of_replay(replay.save(), T(1), SPEC.observations, SPEC.actions, "it")
    assert found.num_transitions == 7


def test_rollouts_and_discounts_between_steps_are_refused():
    replay = EmbeddedReplay(spec(T(3)), SPEC)
    adder = replay.adder()
    adder.add_first(dm_env.restart(np.zeros(2, np.float32)))
    for kind in (StepType.MID, StepType.MID, StepType.LAST):
        timestep = dm_env.TimeStep(kind, np.float32(1), np.float32(0.5), np.zeros(2, np.float32))
        adder.add(np.int32(0), timestep)
    with pytest.raises(ValueError, match="discounts between its steps"):
        history.of_replay(replay.save(), T(3), SPEC.observations, SPEC.actions, "it")
    with pytest.raises(ValueError, match="newest rollouts"):
        history.of_replay({}, Rollouts(3), SPEC.observations, SPEC.actions, "it")


def test_stacks_are_kept_as_frames_and_put_together_again():
    environment = environments.make(
        "fake/image", seed=0, num_envs=2, size=8, episode_lengths=(5, 3, 9)
    )
    described = environments.make_spec(environment)
    assert isinstance(described.observations, StackedArray)
    written = EmbeddedReplay(spec(T(1)), described, num_envs=2)
    adder = written.adder()
    adder.add_first(environment.reset())
    for _ in range(40):
        actions = np.zeros(2, np.int32)
        adder.add(actions, environment.step(actions))
    found = history.of_replay(written.save(), T(1), described.observations, described.actions, "it")
    assert found.observation[0].shape[1:] == (8, 8)
    replay = OfflineReplay(found, spec(T(1)), described)
    assert len(replay) == len(written)
    drawn = [
        {one.observation.tobytes() + one.next_observation.tobytes() for one in items(of).values()}
        for of in (replay, written)
    ]
    assert drawn[0] == drawn[1]
