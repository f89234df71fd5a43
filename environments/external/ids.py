"""Ids of simulators that are served elsewhere: "external:HOST:PORT", or several with commas."""

from __future__ import annotations

import contextlib
from typing import Any

from .. import options
from ..errors import EnvironmentFault, InvalidOptionError
from ..gymnasium_adapter import GymnasiumEnvironment
from ..seeding import derive_seed
from ..vector import Vector
from .client import messages
from .client.messages import ProtocolError
from .environment import ExternalEnvironment

PREFIX = "external:"
_SECONDS = {"patience": 60.0, "time_limit": 60.0}
_MOST_SECONDS = 1e6


def make(
    id: str,
    seed: int,
    num_envs: int | None,
    *,
    actions: Any = "strict",
    reward_clip: float | None = None,
    max_episode_steps: int | None = None,
    token_path: str | None = None,
    **arguments: Any,
) -> GymnasiumEnvironment | ExternalVector:
    """Connects to simulators.

    Args:
      id: `PREFIX` and the addresses of servers, which connections try in turn.
      seed: at least 0; environment i of a vector has `derive_seed(seed, i)`.
      num_envs: None for one environment.
      actions, reward_clip, max_episode_steps: of `GymnasiumEnvironment`.
      token_path: a file whose first line is the token; None: as `client.messages.find_token`.
      **arguments: `patience` and `time_limit`, seconds, of `ExternalEnvironment`.

    Raises:
      InvalidOptionError: if an argument has a value that it cannot have.
      EnvironmentFault: as `ExternalEnvironment`.
    """
    addresses = id.removeprefix(PREFIX).split(",")
    token = _token(token_path)
    for address in addresses:
        try:
            host, _ = messages.parse_address(address)
        except ValueError as error:
            raise InvalidOptionError(f"{id}: {error}") from None
        if not token and not messages.is_local(host):
            raise InvalidOptionError(
                f"{id}: another machine is not trusted without a token; set {messages.TOKEN} or "
                f"{messages.TOKEN_PATH}, or give token_path (--env.token_path)"
            )
    unknown = sorted(set(arguments) - set(_SECONDS))
    if unknown:
        known = ", ".join(["token_path", *_SECONDS])
        raise InvalidOptionError(f"{id} has no {unknown[0]}; it has {known}")
    seconds = {
        name: options.seconds(name, arguments.get(name, value), _MOST_SECONDS)
        for name, value in _SECONDS.items()
    }

    def make_one(index: int) -> _External:
        one_seed = derive_seed(seed, index)
        return _External(
            ExternalEnvironment(addresses, one_seed, token=token, **seconds),
            seed=one_seed,
            actions=actions,
            reward_clip=reward_clip,
            max_episode_steps=max_episode_steps,
            name=id,
        )

    if num_envs is None:
        return make_one(0)
    made: list[_External] = []
    try:
        for index in range(num_envs):
            made.append(make_one(index))
        return ExternalVector(made)
    except BaseException:
        for environment in made:
            environment.close()
        raise


def _token(path: str | None) -> str:
    try:
        return messages.find_token() if path is None else messages.read_token(path)
    except (OSError, TypeError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"the token cannot be read: {error}") from None


class _External(GymnasiumEnvironment):
    def ask(self, action: Any) -> None:
        """Sends what the next `step` with this action, or the reset in its place, asks for."""
        self._environment.ask(None if self._over else self._take(action))


class ExternalVector(Vector):
    """Simulators that compute at once: all are told their actions before one is waited for."""

    def step(self, actions: Any) -> Any:
        """Steps every simulator, as `Vector.step`."""
        for environment, action in zip(self._environments, self._rows(actions), strict=True):
            # What is wrong with an action, or a simulator, `step` says.
            with contextlib.suppress(ProtocolError, EnvironmentFault):
                environment.ask(action)
        return super().step(actions)
