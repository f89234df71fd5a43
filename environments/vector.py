"""Several environments stepped as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from . import action_masks, specs
from .adapter import Adapter, is_reward, not_a_reward, show
from .errors import (
    EnvironmentExitError,
    EnvironmentFault,
    InvalidActionError,
    InvalidObservationError,
    InvalidOptionError,
    InvalidRewardError,
)
from .stacking import StackFrames

_FIRST, _MID, _LAST = dm_env.StepType


class Vector(specs.Specified):
    """N environments whose time steps have a leading dimension N in every field.

    Element by element these are the semantics of dm_env, with numbers where dm_env has None:

    - `step_type` int32 [N]: the values of `dm_env.StepType`, some of one kind, some of another;
    - `reward` float32 [N]: 0 at FIRST;
    - `discount` float32 [N]: 1 at FIRST (but see `specs.waiting`), 0 at the LAST of a terminated
      episode and 1 at that of a truncated one;
    - `observation`: the nest of an environment, [N, ...]. At LAST it is the final observation.

    An environment that stands at LAST starts its next episode with the next step, ignores its
    action, and yields FIRST. Row i is at every step what environment i alone would give. All
    arrays are new at every step: the caller may keep them.

    The spec methods describe one environment, without N.
    """

    def __init__(self, environments: Sequence[dm_env.Environment]) -> None:
        """Takes over the environments, which nothing else may step from now on.

        Raises:
          InvalidOptionError: if there are none, or their specs differ.
        """
        if not isinstance(environments, Sequence) or not environments:
            got = show(environments)
            raise InvalidOptionError(
                f"a vector needs a sequence of at least 1 environment, got {got}"
            )
        self._environments = list(environments)
        for environment in self._environments:
            if not callable(getattr(environment, "observation_spec", None)):
                raise InvalidOptionError(
                    f"a vector is of dm_env environments, got {show(environment)}; "
                    "GymnasiumEnvironment makes one of Gymnasium's"
                )
        self._spec = specs.make_spec(self._environments[0])
        for i, environment in enumerate(self._environments):
            if environment is self._environments[0]:  # One description may stand for all of them.
                continue
            for field, spec in specs.make_spec(environment)._asdict().items():
                if not specs.equal(spec, getattr(self._spec, field)):
                    raise InvalidOptionError(
                        f"environments of a vector must have the same specs: the {field} of "
                        f"environment {i} differ from those of environment 0"
                    )
        n = len(self._environments)
        self._steps = [environment.step for environment in self._environments]
        # Those of this package look at their rewards themselves.
        self._inner = [_innermost(environment) for environment in self._environments]
        self._foreign = [
            (i, type(one).__name__)
            for i, one in enumerate(self._inner)
            if not isinstance(one, Adapter)
        ]
        self._has_mask = self._spec.action_mask is not None
        self._all_mid = np.full(n, _MID, np.int32)
        self._is_flat = isinstance(self._spec.observations, specs.Array)
        self._leaves = [
            ((n, *leaf.shape), leaf.dtype) for leaf in tree.flatten(self._spec.observations)
        ]
        self._real = [i for i, (_, dtype) in enumerate(self._leaves) if dtype.kind == "f"]
        actions = tree.flatten(self._spec.actions)
        self._one_action = isinstance(self._spec.actions, specs.Array)
        self._action_shapes = [(n, *leaf.shape) for leaf in actions]

    @property
    def num_envs(self) -> int:
        return len(self._environments)

    @property
    def num_agents(self) -> int:
        """Agents of one environment, each of which has a row of its own."""
        return 1

    @property
    def environments(self) -> tuple[dm_env.Environment, ...]:
        """The environments, to look at; stepping one of them breaks the vector."""
        return tuple(self._environments)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for users on the environments, a sentence each."""
        return getattr(self._inner[0], "remarks", ())

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which episodes are truncated; None: no limit is known."""
        return getattr(self._inner[0], "max_episode_steps", None)

    def episode_info(self, index: int) -> Mapping[str, float]:
        """Numbers of the newest episode that has ended in an environment, beside its return.

        They are those of Gymnasium's `info` at its last step, such as `is_success`.
        """
        return getattr(self._inner[index], "episode_info", {})

    def episode_text(self, index: int) -> str | None:
        """A line on the newest episode that has ended in an environment, such as a prompt with its
        answer; None: there is nothing to read."""
        return getattr(self._inner[index], "episode_text", None)

    def reset(self) -> dm_env.TimeStep:
        """Starts a new episode in every environment, whatever it was doing.

        Raises:
          InvalidObservationError, EnvironmentExitError: as `step`.
        """
        timesteps: list[dm_env.TimeStep] = []
        try:
            for environment in self._environments:
                timesteps.append(environment.reset())
        except SystemExit as end:
            raise self._exit(len(timesteps), end) from end
        return self._collect(timesteps)

    def step(self, actions: specs.Nest) -> dm_env.TimeStep:
        """Steps every environment.

        Args:
          actions: the nest of the action spec, every leaf with the leading dimension N.

        Raises:
          InvalidActionError: if the leading dimension is not N, or an action does not fit.
          InvalidRewardError: if an environment returned a reward that is not finite.
          InvalidObservationError: if it returned an observation that is not.
          EnvironmentExitError: if it called `sys.exit`.
        """
        rows = self._rows(actions)
        i = 0
        timesteps = []
        try:
            for i, step in enumerate(self._steps):
                timesteps.append(step(rows[i]))
        except EnvironmentFault as fault:
            raise type(fault)(f"environment {i} of {self.num_envs}: {fault}") from fault
        except SystemExit as end:
            raise self._exit(i, end) from end
        for i, name in self._foreign:
            kind, reward, *_ = timesteps[i]
            if kind is not _FIRST and not is_reward(reward):
                raise InvalidRewardError(
                    f"environment {i} of {self.num_envs}: {name}: {not_a_reward(reward)}"
                )
        return self._collect(timesteps)

    def _rows(self, actions: specs.Nest) -> Any:
        """One action per environment."""
        if self._one_action:
            array = np.asarray(actions)
            if array.shape != self._action_shapes[0]:
                raise InvalidActionError(
                    f"actions must have shape {self._action_shapes[0]}, got {array.shape}"
                )
            # Python's numbers are quicker to check than numpy's scalars.
            return array.tolist() if array.ndim == 1 else array
        try:
            tree.assert_same_structure(actions, self._spec.actions, check_types=False)
        except (TypeError, ValueError):
            raise InvalidActionError(
                f"actions must have the structure {self._spec.actions}"
            ) from None
        leaves = [np.asarray(leaf) for leaf in tree.flatten(actions)]
        shapes = [leaf.shape for leaf in leaves]
        if shapes != self._action_shapes:
            raise InvalidActionError(
                f"actions must have shapes {self._action_shapes}, got {shapes}"
            )
        return [
            tree.unflatten_as(self._spec.actions, [leaf[i] for leaf in leaves])
            for i in range(self.num_envs)
        ]

    def _collect(self, timesteps: list[dm_env.TimeStep]) -> dm_env.TimeStep:
        """N time steps as one."""
        n = len(timesteps)
        kinds = self._all_mid.copy()
        rewards = np.empty(n, np.float32)
        discounts = np.empty(n, np.float32)
        leaves = [np.empty(shape, dtype) for shape, dtype in self._leaves]
        first_leaf = leaves[0] if self._is_flat else None
        for i, (kind, reward, discount, observation) in enumerate(timesteps):
            if kind is _FIRST:
                kinds[i], rewards[i] = _FIRST, 0.0
                discounts[i] = 1.0 if discount is None else discount
            else:
                if kind is not _MID:
                    kinds[i] = kind
                rewards[i] = reward
                discounts[i] = discount
            try:
                if first_leaf is not None:
                    first_leaf[i] = observation
                else:
                    for leaf, value in zip(leaves, tree.flatten(observation), strict=True):
                        leaf[i] = value
            except ValueError as error:
                specs.check_shapes(observation, self._spec.observations, self._who(i))
                raise InvalidObservationError(f"{self._who(i)}: {error}") from error
        for place in self._real:
            leaf = leaves[place]
            # The sum of squares takes half a microsecond, to look at every number four.
            if not np.vdot(leaf, leaf) < np.inf and not np.isfinite(leaf).all():
                raise self._not_finite(place, leaf)
        observations = (
            first_leaf
            if first_leaf is not None
            else tree.unflatten_as(self._spec.observations, leaves)
        )
        if self._has_mask:
            mask = observations[action_masks.KEY]
            action_masks.check(mask, kinds, self._spec.actions, self._who)
        return dm_env.TimeStep(kinds, rewards, discounts, observations)

    @property
    def render_fps(self) -> float | None:
        """Steps a second at which an environment is to be watched; None: it does not say."""
        return getattr(self._environments[0], "render_fps", None)

    def _exit(self, index: int, end: SystemExit) -> EnvironmentExitError:
        return EnvironmentExitError(f"{self._who(index)} called sys.exit({end.code!r})")

    def _not_finite(self, place: int, leaf: np.ndarray) -> InvalidObservationError:
        """Builds the error for a leaf of the observations [N, ...] that is not finite."""
        index = int(np.argwhere(~np.isfinite(leaf))[0][0])
        number = leaf[index][~np.isfinite(leaf[index])][0]
        name = tree.flatten(self._spec.observations)[place].name or "observation"
        inner = self._inner[index]
        moment = inner._moment() if isinstance(inner, Adapter) else ""
        return InvalidObservationError(
            f"{self._who(index)}: {name} holds {number}{moment}; observations must be finite"
        )

    def _who(self, index: int) -> str:
        inner = self._inner[index]
        name = inner._name if isinstance(inner, Adapter) else type(inner).__name__
        return f"environment {index} of {self.num_envs}: {name}"

    def render_frame(self, index: int = 0) -> np.ndarray:
        """The present state of one environment as an image, uint8 [height, width, 3]."""
        return self._environments[index].render_frame()

    def close(self) -> None:
        """Closes every environment."""
        for environment in self._environments:
            environment.close()

    def __enter__(self) -> Vector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _innermost(environment: dm_env.Environment) -> dm_env.Environment:
    """Returns the environment below all stacks of frames."""
    while isinstance(environment, StackFrames):
        environment = environment.unwrapped
    return environment
