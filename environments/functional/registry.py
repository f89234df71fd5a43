"""Ids of functional environments: "jax:CartPole-v1" for one of `TASKS`, "jax:brax/halfcheetah" for
one of a suite, "jax:MODULE:NAME" for one of your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import InvalidOptionError
from ..options import optional_integer
from ..registry import check_arguments, check_known, import_function
from ..spaces import ActionMode
from . import brax_adapter, craftax_adapter, pgx_adapter, transforms
from .interface import FunctionalEnvironment
from .tasks import acrobot, cartpole, catch, mountain_car, nim, pendulum

PREFIX = "jax:"
TASKS: dict[str, Callable[..., FunctionalEnvironment]] = {
    "Acrobot-v1": acrobot.acrobot,
    "CartPole-v1": cartpole.cartpole,
    "Catch-v0": catch.catch,
    "MountainCar-v0": mountain_car.mountain_car,
    "MountainCarContinuous-v0": mountain_car.continuous_mountain_car,
    "Nim-v0": nim.nim,
    "Pendulum-v1": pendulum.pendulum,
    "PendulumMasked-v1": pendulum.masked_pendulum,
}
"""The functions that make environments of our own, by the id that follows `PREFIX`."""
SUITES: dict[str, Callable[..., FunctionalEnvironment]] = {
    "brax": brax_adapter.make,
    "craftax": craftax_adapter.make,
    "pgx": pgx_adapter.make,
}
"""The functions that make environments of packages, by the first part of their ids: they take the
id, the part after "/", and the environment's own arguments, which they check."""


def make(
    id: str,
    *,
    actions: ActionMode = "strict",
    reward_clip: float | None = None,
    max_episode_steps: int | None = None,
    **arguments: Any,
) -> FunctionalEnvironment:
    """Makes a functional environment, with the options of `environments.make`.

    Args:
      id: `PREFIX` and a name of `TASKS`; `PREFIX`, one of `SUITES`, "/" and a name in it; or
        `PREFIX`, a module, ":" and the name of a function in it that makes the environment.
      actions: what becomes of actions in a box (`transforms.bound_actions`).
      reward_clip: rewards are clipped to +- this; None leaves them as they are.
      max_episode_steps: in place of the environment's own limit.
      **arguments: for the function that makes the environment.

    Raises:
      UnknownEnvironmentError: if there is no such id; the message lists near ones.
      MissingExtraError: if the package of a suite is not installed.
      InvalidOptionError: if an argument has a value that it cannot have.
    """
    optional_integer("max_episode_steps", max_episode_steps, 1, 10**9)
    if reward_clip is not None and not (
        isinstance(reward_clip, int | float) and 0 < reward_clip < float("inf")
    ):
        raise InvalidOptionError(f"reward_clip must be above 0 or None, got {reward_clip!r}")

    def changed(environment: FunctionalEnvironment) -> FunctionalEnvironment:
        limit = environment.max_episode_steps if max_episode_steps is None else max_episode_steps
        if limit is not None:
            environment = transforms.time_limit(environment, limit)
        if reward_clip is not None:
            environment = transforms.clip_rewards(environment, reward_clip)
        environment = transforms.bound_actions(environment, actions)
        if (against := environment.against) is None:
            return environment
        return environment._replace(against=lambda opponent: changed(against(opponent)))

    return changed(_make(id, arguments))


def _make(id: str, arguments: dict[str, Any]) -> FunctionalEnvironment:
    """Makes an environment as it comes, without the options of `make`."""
    suite, slash, name = id.removeprefix(PREFIX).partition("/")
    if slash and suite in SUITES:
        return SUITES[suite](id, name, **arguments)
    creator = _creator(id)
    check_arguments(id, dict(inspect.signature(creator).parameters), arguments)
    environment = creator(**arguments)
    if not isinstance(environment, FunctionalEnvironment):
        raise InvalidOptionError(
            f"{id} makes a {type(environment).__name__}; it must return a FunctionalEnvironment"
        )
    return environment


def _creator(id: str) -> Callable[..., FunctionalEnvironment]:
    module, colon, name = id.removeprefix(PREFIX).rpartition(":")
    if not colon:
        check_known(id, [f"{PREFIX}{known}" for known in TASKS])
        return TASKS[name]
    return import_function(id, module, name)
