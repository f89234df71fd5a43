"""Functional environments for whoever steps them from Python: a `Vector`, or one `dm_env`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import tree

from .. import action_masks, specs
from ..errors import InvalidActionError, InvalidRewardError
from ..seeding import check_seed
from ..vector import Vector
from . import streams
from .interface import FunctionalEnvironment

_FIRST, _MID, _LAST = dm_env.StepType


class FunctionalVector(Vector):
    """N functional environments, stepped by one compiled program on the host's CPU.

    For the same seeds the episodes are those of `streams` in any other program.

    Attributes:
      functions: the environment.
      keys: [N], of the environments.
    """

    def __init__(
        self,
        environment: FunctionalEnvironment,
        name: str,
        seeds: Sequence[int],
        reward_clip: float | None = None,
    ) -> None:
        """Compiles nothing yet.

        Args:
          environment: any.
          name: what errors call it.
          seeds: of each environment, at least 0; their keys are `keys_of` them.
          reward_clip: bound of the rewards that the environment gives; None: none is known.

        Raises:
          UnsupportedSpaceError: if its specs are of complex numbers.
        """
        specs.require_real([environment.observations, environment.actions], name)
        super().__init__([_Described(environment, reward_clip)] * len(seeds))
        self.functions = environment
        self._name = name
        self._cpu = jax.devices("cpu")[0]
        self.keys = jax.device_put(keys_of(seeds), self._cpu)
        self.face(lambda params: environment, ())
        self._limits = [_limits(spec) for spec in tree.flatten(self._spec.actions)]

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which episodes are truncated; None: no limit is known."""
        return self.functions.max_episode_steps

    def face(self, opposed: Callable[[Any], FunctionalEnvironment], params: Any) -> None:
        """Has somebody else play against the learner, in new episodes.

        Args:
          opposed: makes the same game against whoever plays with the parameters it is given.
          params: as of `opponent`.
        """

        def reset(params: Any, keys: jax.Array) -> tuple[streams.Streams, dm_env.TimeStep]:
            return streams.reset(opposed(params), keys)

        def step(params: Any, *state: Any) -> tuple[streams.Streams, dm_env.TimeStep]:
            return streams.step(opposed(params), *state)

        self._opposed, self.opponent = opposed, params
        self._begin, self._go_on = jax.jit(reset), jax.jit(step, donate_argnums=1)
        self._streams: streams.Streams | None = None

    @property
    def opponent(self) -> Any:
        """Parameters of whoever plays against the learner; they may be set before any step."""
        return self._opponent

    @opponent.setter
    def opponent(self, params: Any) -> None:
        self._opponent = jax.device_put(params, self._cpu)

    @property
    def played(self) -> FunctionalEnvironment:
        """The game as it is played now, against whoever it faces."""
        return self._opposed(self._opponent)

    def reset(self) -> dm_env.TimeStep:
        """Starts a new episode in every environment, whatever it was doing."""
        if self._streams is not None:  # The episodes of another reset are others.
            self.keys = jax.vmap(jax.random.split)(self.keys)[:, 0]
        self._streams, timestep = self._begin(self._opponent, self.keys)
        return self._to_host(timestep)

    def step(self, actions: specs.Nest) -> dm_env.TimeStep:
        """Steps every environment.

        Raises:
          InvalidActionError: if the leading dimension is not N, or an action does not fit.
          InvalidRewardError: if an environment returned a reward that is not finite.
          InvalidObservationError: if it returned an observation that is not.
        """
        self._rows(actions)
        if self._streams is None:
            return self.reset()
        self._streams, timestep = self._go_on(self._opponent, self._streams, self._checked(actions))
        return self._to_host(timestep)

    def close(self) -> None:
        """Forgets the state."""
        self._streams = None

    def _checked(self, actions: specs.Nest) -> specs.Nest:
        """Returns the actions as arrays of their spec's dtypes.

        Raises:
          InvalidActionError: if one is not within its bounds.
        """
        arrays = []
        for (spec, low, high), leaf in zip(self._limits, tree.flatten(actions), strict=True):
            array = np.asarray(leaf)
            kinds = "iu" if spec.dtype.kind in "iu" else "fiu"
            if array.dtype.kind not in kinds or not ((array >= low) & (array <= high)).all():
                raise InvalidActionError(
                    f"{self._name}: {spec.name} must be {spec.dtype} from {low} to {high}, "
                    f"got {array.tolist()}"
                )
            arrays.append(array.astype(spec.dtype, copy=False))
        return tree.unflatten_as(self._spec.actions, arrays)

    def _to_host(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        # Copies: the state is donated, and an observation may be a part of it.
        found = jax.tree.map(np.array, timestep)
        if not np.isfinite(found.reward).all():
            row = int((~np.isfinite(found.reward)).argmax())
            raise InvalidRewardError(
                f"{self._who(row)}: reward {found.reward[row]}; rewards must be finite"
            )
        for place in self._real:
            leaf = tree.flatten(found.observation)[place]
            if not np.isfinite(leaf).all():
                raise self._not_finite(place, leaf)
        if self._has_mask:
            masks = action_masks.find(found.observation)
            action_masks.check(masks, found.step_type, self._spec.actions, self._who)
        return found

    def _who(self, index: int) -> str:
        return f"environment {index} of {self.num_envs}: {self._name}"


class HostedEnvironment(specs.Specified, dm_env.Environment):
    """One functional environment as a `dm_env.Environment`: the only row of a vector."""

    def __init__(
        self,
        environment: FunctionalEnvironment,
        name: str,
        seed: int,
        reward_clip: float | None = None,
    ) -> None:
        """Args: as of `FunctionalVector`."""
        self._vector = FunctionalVector(environment, name, [seed], reward_clip)
        self._spec = specs.make_spec(self._vector)

    def reset(self) -> dm_env.TimeStep:
        return _only(self._vector.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes one step, or starts an episode after the last step of one.

        Raises:
          InvalidActionError, InvalidRewardError, InvalidObservationError: as `FunctionalVector`.
        """
        return _only(self._vector.step(tree.map_structure(lambda a: np.asarray(a)[None], action)))

    def close(self) -> None:
        self._vector.close()


class _Described(specs.Specified, dm_env.Environment):
    """The specs of a functional environment; it is asked for nothing else."""

    def __init__(self, environment: FunctionalEnvironment, reward_clip: float | None) -> None:
        self._spec = specs.EnvironmentSpec(
            environment.observations,
            environment.actions,
            specs.reward_spec(reward_clip),
            specs.discount_spec(),
        )

    def reset(self) -> dm_env.TimeStep:
        raise NotImplementedError

    def step(self, action: Any) -> dm_env.TimeStep:
        raise NotImplementedError


def keys_of(seeds: Sequence[int]) -> jax.Array:
    """Returns the PRNG keys [N] of environments with these seeds."""
    words = [np.random.SeedSequence(check_seed(seed)).generate_state(2) for seed in seeds]
    return jax.random.wrap_key_data(jnp.asarray(np.stack(words), jnp.uint32), impl="threefry2x32")


def _only(timestep: dm_env.TimeStep) -> dm_env.TimeStep:
    """Returns the time step of the only row of a vector, in dm_env's terms."""
    kind, reward, discount, observation = tree.map_structure(lambda leaf: leaf[0], timestep)
    kind = dm_env.StepType(int(kind))
    if kind is _FIRST:
        return dm_env.TimeStep(kind, None, None, observation)
    return dm_env.TimeStep(kind, reward, discount, observation)


def _limits(spec: specs.Array) -> tuple[specs.Array, Any, Any]:
    bounded = isinstance(spec, specs.BoundedArray)
    return (spec, spec.minimum, spec.maximum) if bounded else (spec, -np.inf, np.inf)
