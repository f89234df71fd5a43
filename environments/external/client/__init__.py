"""Serves a simulator to agents over TCP: the standard library alone, Python 3.8 or newer.

Copy this folder to where the simulator is: it imports nothing of the package around it. An
environment with the methods of `gymnasium.Env`:

    import client
    client.serve(MyGame, "0.0.0.0:7000")

and a simulator with a loop of its own, which asks for actions where it needs them:

    with client.SimulatorServer("0.0.0.0:7000", client.box((3,)), client.discrete(2)) as server:
        player = server.wait()
        action = player.begin(observation)
        while action is not None:
            ...
            action = player.step(observation, reward)  # or player.end(observation, reward)

Whoever connects proves that it knows the token, and is shown the same proof; the token itself is
never sent. It is that of the environment variable TROUPE_EXTERNAL_TOKEN, or the first line of the
file that TROUPE_EXTERNAL_TOKEN_PATH names. Without a token only this machine may connect.

docs/external.md has the protocol, for simulators in other languages.
"""

from .gymnasium_server import describe, serve
from .messages import ProtocolError
from .server import Player, SimulatorServer
from .spaces import box, discrete, multi_discrete, nest

__all__ = [
    "Player",
    "ProtocolError",
    "SimulatorServer",
    "box",
    "describe",
    "discrete",
    "multi_discrete",
    "nest",
    "serve",
]
