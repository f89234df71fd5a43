"""Serves environments with the methods of `gymnasium.Env`."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Callable
from typing import Any

from .messages import ProtocolError
from .server import Player, SimulatorServer
from .spaces import CODES, Space, box, discrete, flat, multi_discrete, nest


def _say(server: SimulatorServer) -> None:
    print("serving at", server.address, flush=True)


def serve(
    make: Callable[[], Any],
    address: str,
    token: str | None = None,
    started: Callable[[SimulatorServer], Any] = _say,
) -> None:
    """Serves environments, a new one to each agent that connects, until the server is closed.

    Each has a thread of its own. Where they compute in Python they share one core so: start
    several servers, and give the agents the addresses of all.

    Args:
      make: returns a new environment.
      address: "HOST:PORT".
      token: None for the one of this process's environment.
      started: called with the server once it listens.

    Raises:
      ValueError, OSError: as `SimulatorServer`.
      TypeError: if the environment's spaces cannot be sent.
    """
    spare = [make()]
    spaces = describe(spare[0].observation_space), describe(spare[0].action_space)
    with SimulatorServer(address, *spaces, token=token) as server:
        started(server)
        while True:
            try:
                connection = server.accept()
            except OSError:
                return
            arguments = (server, connection, make, spare)
            threading.Thread(target=_play, args=arguments, daemon=True).start()


def describe(space: Any) -> Space:
    """Returns a space of Gymnasium's, or of Gym's, as it is sent.

    Raises:
      TypeError: if it is of a kind that cannot be.
    """
    kind = type(space).__name__
    if kind == "Dict":
        return nest({name: describe(part) for name, part in space.spaces.items()})
    if kind == "Tuple":
        return nest([describe(part) for part in space.spaces])
    if kind == "Discrete":
        return discrete(int(space.n), int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete" and not getattr(space, "start", space.nvec * 0).any():
        return multi_discrete(space.nvec.tolist())
    if kind == "MultiBinary":
        return box(space.shape, 0, 1, "int8")
    if kind == "Box" and str(space.dtype) in CODES:
        return box(space.shape, _bounds(space.low), _bounds(space.high), str(space.dtype))
    raise TypeError(f"the space {space!r} is none that can be sent")


def _bounds(bound: Any) -> Any:
    """One number where all are equal; None stands for infinity."""
    infinities = (float("inf"), -float("inf"))
    numbers = [None if number in infinities else number for number in bound.ravel().tolist()]
    return numbers[0] if numbers and numbers.count(numbers[0]) == len(numbers) else numbers


def _play(
    server: SimulatorServer, connection: socket.socket, make: Callable[[], Any], spare: list[Any]
) -> None:
    """Lets one agent play in one environment until it leaves."""
    player = server.greet(connection)
    if player is None:
        return
    try:
        environment = spare.pop() if spare else make()
        try:
            _play_episodes(environment, player)
        finally:
            environment.close()
    except ProtocolError:
        player.close()
    except Exception as error:
        traceback.print_exc()
        player.fail(f"{type(error).__name__}: {error}")


def _play_episodes(environment: Any, player: Player) -> None:
    convert = _converter(environment.action_space)
    seed: int | None = player.seed
    while True:
        player.wait()
        observation, info = environment.reset(seed=seed)
        seed = None
        action = player.begin(observation, _plain(info))
        while action is not None:
            observation, reward, terminated, truncated, info = environment.step(convert(action))
            if terminated or truncated:
                player.end(observation, reward, bool(terminated), _plain(info))
                break
            action = player.step(observation, reward, _plain(info))


def _converter(space: Any) -> Callable[[Any], Any]:
    """Returns a function from what `unpack` gives to what a space of Gymnasium's takes."""
    kind = type(space).__name__
    if kind == "Discrete":
        return int
    if kind == "Dict":
        parts = {name: _converter(part) for name, part in space.spaces.items()}
        return lambda value: {name: convert(value[name]) for name, convert in parts.items()}
    if kind == "Tuple":
        each = [_converter(part) for part in space.spaces]
        return lambda value: tuple(each[i](part) for i, part in enumerate(value))
    import numpy  # Gymnasium needs it.

    return lambda value: numpy.asarray(value, space.dtype)


def _plain(info: Any) -> dict[str, Any]:
    """Returns the numbers of an environment's info, and its mask of legal actions."""
    found: dict[str, Any] = {}
    for name, value in info.items():
        if name == "action_mask":
            found[name] = [int(one) for one in flat(value)]
        elif isinstance(value, (bool, int, float)) or getattr(value, "shape", None) == ():
            number = float(value)
            if abs(number) < float("inf"):
                found[str(name)] = number
    return found
