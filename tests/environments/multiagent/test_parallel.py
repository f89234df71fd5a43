"""Agents are streams: each ends its own episode, waits alone, and is told apart."""

import dm_env
import gymnasium
import numpy as np
import pytest

from troupe import environments
from troupe.environments import AgentVector, ParallelEnvironment

from .scripted import Scripted

FIRST, MID, LAST = (int(kind) for kind in dm_env.StepType)


def make(count=1, seed=0, options=(), **arguments):
    return AgentVector(
        [
            ParallelEnvironment(
                Scripted(**arguments), seed=seed + i, name="scripted", **dict(options)
            )
            for i in range(count)
        ]
    )


def play(vector, steps):
    actions = np.zeros(vector.num_envs, np.int32)
    return [vector.reset(), *(vector.step(actions) for _ in range(steps))]


def test_an_agent_that_ends_ends_no_other_and_waits():
    """Written out: a ends after 2 steps, b after 4, and c plays from 1 to 3."""
    vector = make()
    steps = play(vector, 5)
    assert [step.step_type.tolist() for step in steps] == [
        [FIRST, FIRST, FIRST],
        [MID, MID, FIRST],
        [LAST, MID, MID],
        [FIRST, MID, LAST],
        [FIRST, LAST, FIRST],
        [FIRST, FIRST, FIRST],
    ]
    waits = [
        environments.specs.waiting(step.step_type, step.discount).astype(int).tolist()
        for step in steps
    ]
    assert waits == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]]
    assert [step.reward.tolist() for step in steps] == [
        [0, 0, 0],
        [1, 11, 0],
        [2, 12, 22],
        [0, 13, 23],
        [0, 14, 0],
        [0, 0, 0],
    ]
    # Terminated, terminated and truncated.
    assert (steps[2].discount[0], steps[3].discount[2], steps[4].discount[1]) == (0, 0, 1)
    assert steps[1].observation[:, :3].tolist() == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]
    assert steps[5].observation[:, :3].tolist() == [[0, 0, 2], [1, 0, 2], [0, 0, 0]]


def test_only_those_who_are_there_act():
    vector = make()
    play(vector, 4)
    taken = vector._parallel[0].unwrapped.taken
    assert [sorted(one) for one in taken] == [["a", "b"], ["a", "b", "c"], ["b", "c"], ["b"]]


def test_returns_are_of_each_agent_and_of_the_team():
    vector = make()
    play(vector, 4)
    assert vector.episode_info(0) == {"place": 2, "return_a": 3}
    assert vector.episode_info(2) == {"place": 3, "return_c": 45}
    assert vector.episode_info(1) == {"place": 4, "return_b": 50, "team_return": 98}


def test_several_environments_of_several_agents():
    vector, singles = make(2), [make(seed=0), make(seed=1)]
    assert (vector.num_envs, vector.num_agents) == (6, 3)
    for together, *alone in zip(*(play(one, 12) for one in (vector, *singles)), strict=True):
        for field in ("step_type", "reward", "discount", "observation"):
            joined = np.concatenate([getattr(one, field) for one in alone])
            np.testing.assert_array_equal(getattr(together, field), joined)
    assert [one.unwrapped.seeds for one in vector._parallel] == [[0, None, None], [1, None, None]]


def test_observations_say_who_sees_them():
    shown, plain = make(), make(options={"agent_indicator": False})
    assert shown.observation_spec().shape == (6,)
    assert shown.observation_spec().maximum.tolist() == [100, 100, 100, 1, 1, 1]
    assert play(shown, 1)[1].observation[:, 3:].tolist() == np.eye(3).tolist()
    assert plain.observation_spec().shape == (3,)


class Pictures(Scripted):
    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 255, (6, 6, 3), np.uint8)

    def _look(self, agents):
        return {agent: np.full((6, 6, 3), self.t, np.uint8) for agent in agents}


class MaskedDict(Scripted):
    def observation_space(self, agent):
        space = super().observation_space(agent)
        mask = gymnasium.spaces.Box(0, 1, (3,), np.int8)
        return gymnasium.spaces.Dict({"observation": space, "action_mask": mask})

    def _look(self, agents):
        mask = (np.arange(3) == self.t % 3).astype(np.int8)
        seen = super()._look(agents)
        return {agent: {"observation": seen[agent], "action_mask": mask} for agent in agents}


def test_an_image_stays_one_beside_who_sees_it():
    vector = AgentVector([ParallelEnvironment(Pictures(), seed=0)])
    assert vector.observation_spec()["observation"].shape == (6, 6, 3)
    assert vector.reset().observation["agent"][:2].tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("kind", [MaskedDict, lambda: Scripted(masked=True)])
def test_masks_are_of_each_agent(kind):
    """In a Dict as in infos. Who waits is allowed everything: nobody looks."""
    vector = AgentVector([ParallelEnvironment(kind(), seed=0)])
    spec = environments.make_spec(vector)
    assert spec.action_mask.shape == (3,)
    assert spec.observations["observation"].shape == (6,)
    timestep = vector.reset()
    for _ in range(12):
        action = timestep.observation["action_mask"].argmax(axis=1)
        timestep = vector.step(action)
        waits = environments.specs.waiting(timestep.step_type, timestep.discount)
        acts = ~waits & ~timestep.last()
        assert (timestep.observation["action_mask"][acts].sum(axis=1) == 1).all()


def test_time_limit():
    steps = play(make(options={"max_episode_steps": 2}), 3)
    assert [step.step_type[:2].tolist() for step in steps] == [
        [FIRST, FIRST],
        [MID, MID],
        [LAST, LAST],
        [FIRST, FIRST],
    ]
    assert steps[2].discount[:2].tolist() == [0, 1]
    assert steps[2].step_type[2] == LAST  # Not left behind.


def test_observations_of_other_sizes_are_padded_when_asked():
    sizes = {"a": 5}
    with pytest.raises(environments.UnsupportedSpaceError, match=r"^scripted: .*--env.pad_obs"):
        make(sizes=sizes)
    options = {"pad_observations": True, "agent_indicator": False}
    timestep = make(sizes=sizes, options=options).reset()
    assert timestep.observation[:2].tolist() == [[0, 0, 1, 0, 0], [1, 0, 1, 0, 0]]


def test_clipped_rewards_and_frames():
    vector = make(options={"reward_clip": 12.0}, render_mode="rgb_array")
    assert [step.reward[1] for step in play(vector, 3)] == [0, 11, 12, 12]
    assert vector.render_frame(2).max() == 3
    assert vector.render_fps == 5
    vector.close()
    assert vector._parallel[0].unwrapped.closed


class Turns(Scripted):
    def agent_iter(self):
        """As PettingZoo's AEC environments have it."""


class OtherActions(Scripted):
    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3 + (agent == "b"))


class Vanishing(Scripted):
    def step(self, actions):
        seen, *rest = super().step(actions)
        return {agent: one for agent, one in seen.items() if agent != "b"}, *rest


class Quiet(Scripted):
    def step(self, actions):
        return super().step(actions)[:4]


class Uncounted(Scripted):
    @property
    def agents(self):
        raise AttributeError

    def reset(self, seed=None, options=None):
        return self._look(["a", "b"]), {}


class Huge(Scripted):
    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        return seen, {**rewards, "b": float("nan")}, *rest


class Blurred(Scripted):
    def _look(self, agents):
        return {
            agent: one * (np.nan if self.t else 1) for agent, one in super()._look(agents).items()
        }


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Turns, "is an AEC environment, whose agents take turns; only parallel ones"),
        (lambda: object(), "has no possible_agents; it must be a pettingzoo.ParallelEnv"),
        (OtherActions, r"need equal actions: those of a are Discrete\(3\), those of b Discrete\(4"),
        (Vanishing, "agent b has none at step 1 of episode 1 and was neither terminated nor"),
        (Quiet, r"step gave 4 values; it must give \(observations, rewards, terminations"),
        (Uncounted, "mine has no agents: keep in it a list of those that are left"),
        (Huge, "agent b: reward nan at step 1 of episode 1; rewards must be finite"),
        (Blurred, "agent a: observation holds nan; observations must be finite"),
    ],
)
def test_mistaken_environments_are_told_in_one_line(kind, message):
    with pytest.raises(environments.EnvironmentFault, match=message) as found:
        play(AgentVector([ParallelEnvironment(kind(), seed=0, name="mine")]), 2)
    assert "\n" not in str(found.value)
    assert "mine" in str(found.value)


def test_actions_that_do_not_fit():
    vector = make()
    vector.reset()
    message = (
        r"^environment 0 of 1: scripted: agent b: action must be an integer from 0 to 2, got 7"
    )
    with pytest.raises(environments.InvalidActionError, match=message):
        vector.step([0, 7, 9])
    with pytest.raises(environments.InvalidActionError, match=r"must have shape \(3,\)"):
        vector.step([0, 0])


def test_vectors_of_other_agents_are_refused():
    two = {"a": (0, 2, "terminated"), "b": (0, 2, "terminated")}
    ones = [ParallelEnvironment(Scripted(lives), seed=0) for lives in (None, two)]
    with pytest.raises(environments.InvalidOptionError, match="must have the same agents"):
        AgentVector(ones)
