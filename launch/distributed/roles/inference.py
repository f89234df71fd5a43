"""Inference servers as roles, and the actors that ask them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ....agents.acting.inference import InferenceServer
from ....agents.acting.remote import RemoteActor
from ....agents.variables.client import VariableClient
from ....agents.variables.reader import VariableReader
from ..engines.launchpad import calls
from ..engines.launchpad.nodes import Service
from ..supervision import role

if TYPE_CHECKING:
    from ....environments import EnvironmentSpec
    from ...experiment import Experiment


class InferenceRole(Service):
    """Chooses actions for actors; parameters never leave it."""

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvironmentSpec,
        num_streams: int,
        batch_size: int,
        wait_seconds: float,
        variables: calls.Remote,
    ):
        """Connects to the variable server; nothing is made yet.

        Args:
          experiment: what is run.
          spec: of one environment.
          num_streams: environments that act at once, over all actors.
          batch_size: rows of a full batch.
          wait_seconds: how long the first request of a batch waits for others.
          variables: the variable server.
        """
        self._experiment, self._spec, self._num_streams = experiment, spec, num_streams
        self._batch_size, self._wait = batch_size, wait_seconds
        self._variables = variables

    def run(self) -> None:
        reader = VariableReader(self._variables, while_waiting=calls.check_stop)
        networks = self._experiment.make_networks(self._spec)
        policy = self._experiment.builder.make_policy(
            networks, self._spec, num_streams=self._num_streams
        )
        self._inference = InferenceServer(
            policy,
            VariableClient(reader),
            self._spec.observations,
            batch_size=self._batch_size,
            wait_seconds=self._wait,
        )
        self._inference.warm_up(calls.check_stop)
        self.infer = self._inference.infer
        self._server.Bind("infer", self.infer)  # What was public earlier is bound already.
        self._serve()
        while not role.pause(0.0):
            self._inference.serve_once(0.2)
        self._end()


def make_remote_actor(
    server: calls.Remote,
    experiment: Experiment,
    spec: EnvironmentSpec,
    key: jax.Array,
    adder: Any,
    *,
    num_envs: int,
    num_streams: int,
) -> tuple[RemoteActor, Any]:
    """An actor that asks an inference server (see `ActorRole`)."""
    networks = experiment.make_networks(spec)
    policy = experiment.builder.make_policy(networks, spec, num_streams=num_streams)

    def infer(leaves: list[np.ndarray], first: np.ndarray) -> Any:
        return calls.insist(server.infer, leaves, first)

    actor = RemoteActor(policy, key, infer, spec.actions, adder, num_envs=num_envs)
    return actor, _Unchanging()


class _Unchanging:
    """The variables of an actor that has none."""

    version = 0


def make_local_actor(
    variables: calls.Remote,
    experiment: Experiment,
    spec: EnvironmentSpec,
    key: jax.Array,
    adder: Any,
    *,
    num_envs: int,
    num_streams: int,
) -> tuple[Any, VariableReader]:
    """The builder's actor, with parameters of the variable server (see `ActorRole`)."""
    reader = VariableReader(variables, while_waiting=calls.check_stop)
    networks = experiment.make_networks(spec)
    policy = experiment.builder.make_policy(networks, spec, num_streams=num_streams)
    actor = experiment.builder.make_actor(key, policy, spec, reader, adder, num_envs=num_envs)
    reader.get_variables()
    return actor, reader


def remote_actors(server: calls.Remote) -> Any:
    return functools.partial(make_remote_actor, server)


def local_actors(variables: calls.Remote) -> Any:
    return functools.partial(make_local_actor, variables)
