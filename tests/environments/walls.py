"""Environments of Gymnasium with a mask of legal actions in `info`, which refuse all others."""

import gymnasium
import numpy as np

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
PLAN = ("...#.", ".#...", "...#.", ".#.#.", "...#G")


class Walls(gymnasium.Env):
    """From a random cell to the goal G, at -0.1 a step, and 1 for coming there.

    Moves into a wall and out of the plan are illegal, and end the run.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (25,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        cells = np.array([list(row) for row in PLAN])
        self.free, self.goal = cells != "#", tuple(np.argwhere(cells == "G")[0])
        self.starts = np.argwhere(cells == ".")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = tuple(self.starts[self.np_random.integers(len(self.starts))])
        return self._look(), self._info()

    def step(self, action):
        if not self._info()["action_mask"][action]:
            raise RuntimeError(f"the illegal action {action} was taken at {self.at}")
        self.at = self._behind(action)
        there = self.at == self.goal
        return self._look(), 1.0 if there else -0.1, there, False, self._info()

    def distances(self):
        """Steps from each start to the goal, without a detour."""
        found, edge = {self.goal: 0}, [self.goal]
        for cell in edge:
            for move in MOVES:
                other = (cell[0] + move[0], cell[1] + move[1])
                if self._is_free(other) and other not in found:
                    found[other] = found[cell] + 1
                    edge.append(other)
        return [found[tuple(start)] for start in self.starts]

    def _behind(self, action):
        return (self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1])

    def _is_free(self, cell):
        return all(0 <= x < 5 for x in cell) and bool(self.free[cell])

    def _look(self):
        seen = np.zeros((5, 5), np.float32)
        seen[self.at] = 1.0
        return seen.reshape(-1)

    def _info(self):
        mask = [self._is_free(self._behind(action)) for action in range(4)]
        return {"action_mask": np.array(mask, np.int8)}


class Slopes(Walls):
    """With a mask, and actions of two numbers that it cannot be of."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


class Locks(gymnasium.Env):
    """Two choices at once, of three and of two values: say what is shown, the second its parity.

    The reward is the share that is right; some of the other values are illegal, and end the run.
    """

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.MultiDiscrete([3, 2])

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self._look()

    def step(self, action):
        if not all(mask[value] for mask, value in zip(self.masks, action, strict=True)):
            raise RuntimeError(f"the illegal action {action} was taken; legal were {self.masks}")
        right = np.mean([action[0] == self.shown, action[1] == self.shown % 2])
        self.left -= 1
        return *self._look()[:1], float(right), self.left == 0, False, self.info

    def _look(self):
        self.shown = int(self.np_random.integers(3))
        self.masks = self.np_random.random(3) < 0.5, self.np_random.random(2) < 0.8
        self.masks[0][self.shown] = self.masks[1][self.shown % 2] = True
        self.info = {"action_mask": self.masks}
        return self.shown, self.info


gymnasium.register("Locks-v0", Locks)
gymnasium.register("Walls-v0", Walls, max_episode_steps=50)
gymnasium.register("Slopes-v0", Slopes, max_episode_steps=50)
