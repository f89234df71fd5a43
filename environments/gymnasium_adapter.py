"""One Gymnasium environment as a `dm_env.Environment`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np

from . import action_masks, options, spaces, specs
from .adapter import Adapter, not_a_reward, numbers_of, show
from .errors import EnvironmentFault, InvalidOptionError, InvalidRewardError
from .rendering import render_image
from .seeding import check_seed

_FIRST, _MID, _LAST = dm_env.StepType
_STEP = "(observation, reward, terminated, truncated, info)"
_NORMALIZERS = (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_MASK = action_masks.KEY


class GymnasiumEnvironment(Adapter):
    """A Gymnasium environment behind the interface, the types and the conventions of dm_env.

    A terminated episode ends with a discount of 0, a truncated one with a discount of 1. A step
    after the last one starts the next episode and ignores its action. Rewards and discounts are
    float32 scalars, observations of 64 bits are narrowed to 32, discrete values count from 0.

    The seed is used once, for the first reset: it seeds the environment, whose later episodes go on
    with the same stream, and its spaces.

    A mask of legal actions, in `info["action_mask"]` or returned by a method `action_masks` as
    sb3-contrib has it, becomes an entry of the observation beside what the environment observes:
    see `action_masks`. The first reset tells whether info has one; who asks for the observation
    spec before has the first episode begun.
    """

    def __init__(
        self,
        environment: gymnasium.Env,
        *,
        seed: int,
        actions: spaces.ActionMode = "strict",
        reward_clip: float | None = None,
        max_episode_steps: int | None = None,
        name: str | None = None,
    ) -> None:
        """Wraps `environment`, which nothing else may step from now on.

        Args:
          environment: not yet reset, or its state does not matter.
          seed: at least 0.
          actions: what becomes of actions in a Box (see `spaces.ActionMode`).
          reward_clip: rewards are clipped to +- this; None leaves them as they are.
          max_episode_steps: episodes are truncated after this many steps, exactly as
            `gymnasium.wrappers.TimeLimit` does; None: only where the environment does.
          name: what errors call the environment; its id by default.

        Raises:
          InvalidOptionError: if an argument has a value that it cannot have.
          UnsupportedSpaceError: if a space has no counterpart among the specs.
        """
        _require_environment(environment)
        max_episode_steps = options.optional_integer(
            "max_episode_steps", max_episode_steps, 1, 10**12
        )
        registered = environment.spec.id if environment.spec is not None else None
        name = name or registered or type(environment.unwrapped).__name__
        self._seed: int | None = check_seed(seed)
        try:
            observation_spec = spaces.observation_spec(environment.observation_space)
            action_spec = spaces.action_spec(environment.action_space, actions)
            write = spaces.action_writer(environment.action_space, actions)
        except EnvironmentFault as fault:
            raise type(fault)(f"{name}: {fault}") from None
        super().__init__(environment, name, reward_clip, observation_spec, action_spec, write)
        self._read = spaces.observation_reader(environment.observation_space)
        self.remarks = tuple(_remarks(environment, name))
        self.max_episode_steps = max_episode_steps
        self._limit = float("inf") if max_episode_steps is None else max_episode_steps
        self._step = environment.step
        self._steps = 0
        self._episodes = 0
        self._over = True
        self._begun: dm_env.TimeStep | None = None  # An episode, before anybody asked for it.
        self._is_masked = False  # Beside the observation.
        self._may_mask = action_masks.find(observation_spec) is None
        self._make_mask = _mask_method(environment) if self._may_mask else None
        environment.action_space.seed(seed)
        environment.observation_space.seed(seed)

    @property
    def unwrapped(self) -> gymnasium.Env:
        """The Gymnasium environment that was wrapped."""
        return self._environment

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode; the first one with the seed."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._over = False
            return begun
        observation, info = self._begin()
        self._seed = None
        self._steps = 0
        self._episodes += 1
        self._over = False
        if self._episodes == 1:
            seen = self._first(observation)
            self._find_mask(info)
        else:
            seen = self._read(observation)
        return dm_env.TimeStep(_FIRST, None, None, self._masked(seen, info, False))

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes one step, or starts an episode after the last step of one.

        Raises:
          InvalidActionError: if the action does not fit the action spec.
          InvalidRewardError: if the environment returned a reward that is not finite.
        """
        if self._over:
            return self.reset()
        given = self._step(self._take(action))
        self._steps += 1
        try:
            observation, number, terminated, truncated, info = given
        except (TypeError, ValueError):
            raise self._misshapen("step", given, _STEP) from None
        reward = self._give(number if number.__class__ is float else self._number(number))
        if terminated:
            kind, discount = _LAST, _ZERO
            self._over = True
        elif truncated or self._steps >= self._limit:
            kind, discount = _LAST, _ONE
            self._over = True
        else:
            kind, discount = _MID, _ONE
        if self._over:
            self.episode_info = numbers_of(info)
        seen = self._read(observation)
        if self._is_masked or (info and _MASK in info):
            seen = self._masked(seen, info, self._over)
        # Not TimeStep(...): its generated __new__ is a Python function, twice the time of this.
        return tuple.__new__(dm_env.TimeStep, (kind, reward, discount, seen))

    def observation_spec(self) -> specs.Nest:
        """The spec of observations, for which the first episode is begun where it was not yet."""
        if self._episodes == 0:
            self._begun = self.reset()
            self._over = True
        return self._spec.observations

    @property
    def render_fps(self) -> float | None:
        """Steps a second at which it is to be watched; None: it does not say."""
        return self._environment.metadata.get("render_fps")

    def render_frame(self) -> np.ndarray:
        """The present state as an image, uint8 [height, width, 3].

        Raises:
          InvalidOptionError: if the environment was made without `render_mode="rgb_array"`.
          RenderError: if drawing fails, mostly because there is nothing to draw with.
        """
        if self._environment.render_mode != "rgb_array":
            raise InvalidOptionError(
                f"{self._name}: no image to render; make the environment with "
                "render_mode='rgb_array'"
            )
        return render_image(self._environment.render, self._name)

    def _moment(self) -> str:
        return f" at step {self._steps} of episode {self._episodes}"

    def _find_mask(self, info: Any) -> None:
        """Once: has the spec say that there is a mask beside the observation, where there is."""
        given = isinstance(info, Mapping) and _MASK in info
        if not self._may_mask or (not given and self._make_mask is None):
            return
        if given:
            self._make_mask = None
        observations, actions = self._spec.observations, self._spec.actions
        try:
            action_masks.check_actions(actions)
        except EnvironmentFault as fault:
            raise type(fault)(f"{self._name}: {fault}") from None
        self._is_masked = True
        num_actions = sum(action_masks.num_values(actions))
        observations = action_masks.add_to_spec(observations, num_actions)
        self._spec = self._spec._replace(observations=observations)

    def _masked(self, seen: specs.Nest, info: Any, over: bool) -> specs.Nest:
        """Returns an observation with the mask beside it, where there is one."""
        if self._is_masked:
            if self._make_mask is not None:
                info = {_MASK: self._make_mask()}
            mask = action_masks.read(info, self._spec.actions, over, self._name)
            return {action_masks.OBSERVATION: seen, _MASK: mask}
        if self._may_mask and isinstance(info, Mapping) and _MASK in info:
            raise EnvironmentFault(
                f"{self._name}: info has an {_MASK}{self._moment()}, and that of the "
                "first reset had none; give it from the first reset on"
            )
        return seen

    def _number(self, reward: Any) -> float:
        """Returns a reward as a Python float."""
        try:
            if not isinstance(reward, str):
                return float(reward)
        except (TypeError, ValueError):
            pass
        raise InvalidRewardError(f"{self._name}: {not_a_reward(reward, self._moment())}")

    def _begin(self) -> tuple[Any, Any]:
        """Begins an episode; returns the environment's observation and info."""
        try:
            given = self._environment.reset(seed=self._seed)
        except TypeError as error:
            if "'seed'" not in str(error):
                raise
            raise EnvironmentFault(
                f"{self._name}: {error}; it must be reset(self, *, seed=None, options=None)"
            ) from error
        if not isinstance(given, tuple) or len(given) != 2:
            raise self._misshapen("reset", given, "(observation, info)")
        return given

    def _misshapen(self, method: str, given: Any, expected: str) -> EnvironmentFault:
        """Builds the error for what a method gave in place of a tuple."""
        what = f"{len(given)} values" if isinstance(given, tuple) else show(given)
        return EnvironmentFault(
            f"{self._name}: {method} gave {what}; it must give {expected}, as gymnasium.Env says"
        )

    def _first(self, observation: Any) -> specs.Nest:
        """Reads the first observation, which is compared with its space.

        Once: not every environment keeps to what its space declares.
        """
        specs.require_real(observation, self._name)
        try:
            read = self._read(observation)
        except (TypeError, ValueError, LookupError):
            space = " ".join(str(self._environment.observation_space).split())
            raise EnvironmentFault(
                f"{self._name}: the observation {show(observation)} does not fit its space {space}"
            ) from None
        specs.check_shapes(read, self._spec.observations, self._name)
        return read


def _mask_method(environment: gymnasium.Env) -> Callable[[], Any] | None:
    """Returns the method `action_masks` of an environment or of a wrapper within; None: none."""
    try:
        found = environment.get_wrapper_attr("action_masks")
    except AttributeError:
        return None
    return found if callable(found) else None


def _require_environment(environment: Any) -> None:
    """Raises InvalidOptionError for anything but an environment of Gymnasium's, naming it."""
    if isinstance(environment, gymnasium.Env):
        return
    hint = "inherit from it"
    if isinstance(environment, type):
        hint = "this is a class: make an instance of it"
    elif isinstance(environment, gymnasium.vector.VectorEnv):
        hint = "this is a vector of them: wrap one environment each, in an environments.Vector"
    elif isinstance(environment, str):
        hint = "environments.make takes ids"
    elif isinstance(environment, dm_env.Environment):
        hint = "environments.Conform takes those of dm_env"
    raise InvalidOptionError(
        f"GymnasiumEnvironment takes a gymnasium.Env, got {show(environment)}; {hint}"
    )


def _remarks(environment: gymnasium.Env, name: str) -> Iterator[str]:
    """Finds wrappers that learn statistics where no learner sees them."""
    while isinstance(environment, gymnasium.Wrapper):
        if isinstance(environment, _NORMALIZERS):
            yield (
                f"{name}: the statistics of gymnasium's {type(environment).__name__} are neither "
                "shared with other environments and evaluations nor saved; leave it out and train "
                "`normalized+AGENT`, whose statistics of observations are the learner's"
            )
        environment = environment.env
