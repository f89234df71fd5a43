"""An environment that follows PettingZoo's parallel interface, without it, to a script."""

import gymnasium
import numpy as np


class Scripted:
    """Agents that join and end when they are told to.

    Agent k of the script sees [k, t, episode] in step t, and is given 10 k + t.
    """

    def __init__(self, lives=None, masked=False, sizes=None, render_mode=None):
        """Args:
        lives: by agent (first step, last step, "terminated" or "truncated").
        masked: whether infos have a mask that allows action t mod 3 alone.
        sizes: by agent, of its observation, where not 3.
        """
        self.lives = lives or {
            "a": (0, 2, "terminated"),
            "b": (0, 4, "truncated"),
            "c": (1, 3, "terminated"),
        }
        self.metadata = {"render_fps": 5}
        self.masked, self.sizes, self.render_mode = masked, sizes or {}, render_mode
        self.possible_agents = list(self.lives)
        self.seeds, self.taken, self.closed = [], [], False
        self.t = self.episode = 0

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1.0, 100.0, (self.sizes.get(agent, 3),), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)

    @property
    def agents(self):
        """Those that go on after this step."""
        return [agent for agent, (first, last, _) in self.lives.items() if first <= self.t < last]

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.t, self.episode = 0, self.episode + 1
        there = self.agents
        return self._look(there), {agent: self._info() for agent in there}

    def step(self, actions):
        assert set(actions) == set(self.agents), f"actions of {list(actions)} in step {self.t}"
        for action in actions.values():
            assert not self.masked or action == self.t % 3
        self.taken.append(dict(actions))
        self.t += 1
        there = [
            agent for agent in self.possible_agents if agent in actions or agent in self.agents
        ]
        ends = {agent: how for agent, (_, last, how) in self.lives.items() if self.t == last}
        return (
            self._look(there),
            {a: 10.0 * self.possible_agents.index(a) + self.t for a in there},
            {a: ends.get(a) == "terminated" for a in there},
            {a: ends.get(a) == "truncated" for a in there},
            {a: {"place": self.t, **self._info()} for a in there},
        )

    def _info(self):
        return {"action_mask": np.arange(3) == self.t % 3} if self.masked else {}

    def _look(self, agents):
        rows = {a: [self.possible_agents.index(a), self.t, self.episode] for a in agents}
        return {
            a: np.resize(np.array(row, np.float32), self.sizes.get(a, 3)) for a, row in rows.items()
        }

    def render(self):
        return np.full((4, 4, 3), self.t, np.uint8)

    def close(self):
        self.closed = True
