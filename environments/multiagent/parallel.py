"""One environment of several agents that act at once, as a time step for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from .. import action_masks, options, spaces, specs
from ..adapter import check_reward_clip, is_reward, not_a_reward, numbers_of, show
from ..errors import EnvironmentFault, InvalidOptionError, InvalidRewardError
from ..rendering import render_image
from ..seeding import check_seed
from . import observations

_FIRST, _MID, _LAST = dm_env.StepType
_STEP = "(observations, rewards, terminations, truncations, infos)"
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class ParallelEnvironment(specs.Specified):
    """An environment that follows PettingZoo's parallel interface; A agents, a stream each.

    A stream ends its episode when its agent terminates or is truncated, and ends none of others.
    Then it waits until the environment begins anew, which it does when no agent is left. A stream
    that waits stands at FIRST, with a discount of 0 (`specs.waiting`); its observation is of zeros.
    An agent that joins later begins its episode with its first observation.

    The specs are those of one agent. Observations are those of `observations.common`, with a mask
    of legal actions where there is one: as an entry of a Dict, or in the agent's info.
    """

    def __init__(
        self,
        environment: Any,
        *,
        seed: int,
        name: str | None = None,
        actions: spaces.ActionMode = "strict",
        reward_clip: float | None = None,
        max_episode_steps: int | None = None,
        agent_indicator: bool = True,
        pad_observations: bool = False,
    ) -> None:
        """Begins the first episode of an environment, which nothing else may step from now on.

        Args:
          environment: a `pettingzoo.ParallelEnv`, or anything with its methods.
          seed: at least 0; of the first reset. Later ones go on with its random numbers.
          name: what errors call the environment.
          actions: what becomes of actions in a Box (see `spaces.ActionMode`).
          reward_clip: rewards are clipped to +- this; None leaves them as they are.
          max_episode_steps: all agents are truncated after so many steps; None: only where the
            environment does.
          agent_indicator: whether observations say whose they are (`observations.with_indicator`).
          pad_observations: whether vectors are padded with zeros to the longest of all agents.

        Raises:
          InvalidOptionError: if an argument cannot be, or agents take turns.
          UnsupportedSpaceError: if the agents' spaces differ, or have no spec.
        """
        require_parallel(environment, name or show(environment))
        self._environment = environment
        self._name = name or str(environment)
        options.choice("agent_indicator", agent_indicator, (True, False))
        options.choice("pad_observations", pad_observations, (True, False))
        self.max_episode_steps = options.optional_integer(
            "max_episode_steps", max_episode_steps, 1, 10**12
        )
        check_reward_clip(reward_clip)
        self._clip = reward_clip
        self._limit = float("inf") if max_episode_steps is None else max_episode_steps
        self.agents: tuple[Any, ...] = tuple(environment.possible_agents)
        """Names of the agents, in the order of their streams."""
        if not self.agents:
            raise InvalidOptionError(f"{self._name} has no possible_agents")
        count = len(self.agents)
        self._steps = self._episodes = 0
        self._alive = [False] * count
        self._totals, self._team_total = [0.0] * count, 0.0
        self._infos: list[Mapping[str, float]] = [{}] * count
        self._begun: Any = self._begin(check_seed(seed))
        try:
            self._describe(actions, agent_indicator, pad_observations)
        except EnvironmentFault as fault:
            raise type(fault)(f"{self._name}: {fault}") from None
        self._nothing = tree.map_structure(
            lambda spec: np.zeros(spec.shape, spec.dtype), self._spec.observations
        )
        if self._spec.action_mask is not None:
            self._nothing[action_masks.KEY][...] = 1
        self._waits = dm_env.TimeStep(_FIRST, None, _ZERO, self._nothing)

    def _describe(self, mode: spaces.ActionMode, indicator: bool, padded: bool) -> None:
        """Makes the specs and what carries values across."""
        environment, agents = self._environment, self.agents
        taken = {agent: environment.action_space(agent) for agent in agents}
        own = {agent: spaces.action_spec(space, mode) for agent, space in taken.items()}
        hint = "leave one kind of agent out, or give all of them the largest space"
        observations.require_equal("actions", own, taken, hint)
        action_spec = own[agents[0]]
        self._write = [spaces.action_writer(space, mode) for space in taken.values()]
        found = {agent: environment.observation_space(agent) for agent in agents}
        spec, self._read = observations.common(found, padded)
        seen, infos = self._begun
        first = next(agent for agent in agents if agent in seen)
        info = infos.get(first) if isinstance(infos, Mapping) else None
        # Whether masks are of infos, and not of observations.
        self._is_masked = (
            isinstance(info, Mapping)
            and action_masks.KEY in info
            and action_masks.find(spec) is None
        )
        if self._is_masked:
            action_masks.check_actions(action_spec)
        if indicator:
            spec, self._read = observations.with_indicator(spec, self._read, self._name)
        read = self._read[agents.index(first)]
        specs.require_real(seen[first], f"agent {first}")
        try:
            specs.check_shapes(read(seen[first]), spec, f"agent {first}")
        except (TypeError, LookupError):
            raise EnvironmentFault(
                f"the observation {show(seen[first])} of agent {first} does not fit its space "
                f"{show(found[first])}"
            ) from None
        if self._is_masked:
            spec = action_masks.add_to_spec(spec, sum(action_masks.num_values(action_spec)))
        action_masks.check_spec(spec, action_spec)
        self._spec = specs.EnvironmentSpec(
            spec, action_spec, specs.reward_spec(self._clip), specs.discount_spec()
        )

    @property
    def unwrapped(self) -> Any:
        """The environment that was wrapped."""
        return self._environment

    @property
    def name(self) -> str:
        """The name of the environment in errors."""
        return self._name

    @property
    def render_fps(self) -> float | None:
        """Steps a second at which it is to be watched; None: it does not say."""
        return getattr(self._environment, "metadata", {}).get("render_fps")

    def episode_info(self, agent: int) -> Mapping[str, float]:
        """Numbers of an agent's newest episode: those of its last info, and returns.

        `return_NAME` is its own. `team_return`, the sum over all agents since the environment
        began, is with the last agent whose episode ended.
        """
        return self._infos[agent]

    def reset(self) -> list[dm_env.TimeStep]:
        """Begins an episode of every agent that is there."""
        seen, infos = self._begun or self._begin(None)
        self._begun = None
        self._steps, self._team_total = 0, 0.0
        self._episodes += 1
        timesteps = []
        for i, agent in enumerate(self.agents):
            self._alive[i] = agent in seen
            timesteps.append(self._first(i, seen, infos) if self._alive[i] else self._waits)
        return timesteps

    def step(self, actions: Sequence[Any]) -> list[dm_env.TimeStep]:
        """Steps all agents that are left, or begins anew where none is.

        Args:
          actions: one of each agent; those of streams that wait are ignored.

        Raises:
          InvalidActionError: if an action does not fit the action spec.
          InvalidRewardError: if the environment returned a reward that is not finite.
          EnvironmentFault: if it returned something else than it must.
        """
        if not any(self._alive):
            return self.reset()
        chosen = {}
        for i, agent in enumerate(self.agents):
            if self._alive[i]:
                try:
                    chosen[agent] = self._write[i](actions[i])
                except EnvironmentFault as fault:
                    raise type(fault)(f"{self._name}: agent {agent}: {fault}") from None
        given = self._environment.step(chosen)
        self._steps += 1
        try:
            seen, rewards, terminations, truncations, infos = given
        except (TypeError, ValueError):
            raise self._misshapen("step", given, _STEP) from None
        left = set(self._environment.agents)
        is_over = self._steps >= self._limit
        timesteps, ended = [], []
        for i, agent in enumerate(self.agents):
            if self._alive[i]:
                terminated = bool(terminations.get(agent))
                truncated = bool(truncations.get(agent)) or is_over
                if agent not in seen or not (terminated or truncated or agent in left):
                    raise self._lost(agent, seen)
                reward = self._give(agent, rewards.get(agent))
                kind, discount = (_LAST if terminated or truncated else _MID), _ONE
                if terminated:
                    discount = _ZERO
                self._totals[i] += float(reward)
                self._team_total += float(reward)
                if kind is _LAST:
                    self._alive[i] = False
                    ended.append((i, infos.get(agent)))
                observation = self._observe(i, seen, infos, kind is _LAST)
                timesteps.append(dm_env.TimeStep(kind, reward, discount, observation))
            elif agent in seen and agent in left and not is_over:
                self._alive[i] = True
                timesteps.append(self._first(i, seen, infos))
            else:
                timesteps.append(self._waits)
        for i, info in ended:
            self._infos[i] = {
                **numbers_of(info),
                f"return_{self.agents[i]}": self._totals[i],
            }
        if ended and not any(self._alive):
            last = ended[-1][0]
            self._infos[last] = {**self._infos[last], "team_return": self._team_total}
        return timesteps

    def _first(self, i: int, seen: Mapping[str, Any], infos: Any) -> dm_env.TimeStep:
        """Begins the episode of an agent."""
        self._totals[i] = 0.0
        return dm_env.TimeStep(_FIRST, None, None, self._observe(i, seen, infos, False))

    def _observe(self, i: int, seen: Mapping[str, Any], infos: Any, is_last: bool) -> specs.Nest:
        agent = self.agents[i]
        observation = self._read[i](seen[agent])
        if not self._is_masked:
            return observation
        info = infos.get(agent) or {}
        name = f"{self._name}: agent {agent}"
        mask = action_masks.read(info, self._spec.actions, is_last, name)
        return {action_masks.OBSERVATION: observation, action_masks.KEY: mask}

    def _give(self, agent: str, reward: Any) -> np.float32:
        """Returns the agent's reward for the environment's."""
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = float("nan")
        if not is_reward(number):
            moment = f" at step {self._steps} of episode {self._episodes}"
            raise InvalidRewardError(f"{self._name}: agent {agent}: {not_a_reward(reward, moment)}")
        clip = self._clip
        return np.float32(number if clip is None else min(max(number, -clip), clip))

    def _begin(self, seed: int | None) -> tuple[Mapping[str, Any], Any]:
        """Begins an episode; returns observations and infos by agent."""
        given = self._environment.reset(seed=seed)
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], Mapping):
            raise self._misshapen("reset", given, "(observations, infos)")
        if not any(agent in given[0] for agent in self.agents):
            raise EnvironmentFault(f"{self._name}: reset gave no agent's observation")
        if not hasattr(self._environment, "agents"):
            raise EnvironmentFault(
                f"{self._name} has no agents: keep in it a list of those that are left"
            )
        return given

    def _misshapen(self, method: str, given: Any, expected: str) -> EnvironmentFault:
        """Builds the error for what a method gave in place of a tuple."""
        what = f"{len(given)} values" if isinstance(given, tuple) else show(given)
        return EnvironmentFault(
            f"{self._name}: {method} gave {what}; it must give {expected}, dicts by agent, as "
            "pettingzoo.ParallelEnv says"
        )

    def _lost(self, agent: str, seen: Mapping[str, Any]) -> EnvironmentFault:
        """Builds the error for an agent that is gone without an end of its episode."""
        what = "has an observation, but is gone from agents" if agent in seen else "has none"
        return EnvironmentFault(
            f"{self._name}: agent {agent} {what} at step {self._steps} of episode "
            f"{self._episodes} and was neither terminated nor truncated; say which in its last step"
        )

    def render_frame(self) -> np.ndarray:
        """The present state as an image, uint8 [height, width, 3].

        Raises:
          InvalidOptionError: if the environment was made without `render_mode="rgb_array"`.
          RenderError: if drawing fails, mostly because there is nothing to draw with.
        """
        if getattr(self._environment, "render_mode", None) != "rgb_array":
            raise InvalidOptionError(
                f"{self._name}: no image to render; make the environment with "
                "render_mode='rgb_array'"
            )
        return render_image(self._environment.render, self._name)

    def close(self) -> None:
        self._environment.close()


def require_parallel(environment: Any, name: str) -> None:
    """Raises InvalidOptionError for anything but an environment whose agents act at once."""
    if hasattr(environment, "agent_iter") or hasattr(environment, "agent_selection"):
        raise InvalidOptionError(
            f"{name} is an AEC environment, whose agents take turns; only parallel ones can be "
            "trained on, whose agents act at once: make it with its parallel_env"
        )
    needed = ("possible_agents", "reset", "step", "observation_space", "action_space")
    missing = [one for one in needed if not hasattr(environment, one)]
    if missing:
        raise InvalidOptionError(
            f"{name} has no {missing[0]}; it must be a pettingzoo.ParallelEnv, or have its methods"
        )
