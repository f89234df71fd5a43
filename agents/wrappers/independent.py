"""Parameters of its own for each agent of an environment of several.

Letters: B batch, T time, N agents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ...environments.multiagent import observations
from ...environments.specs import EnvironmentSpec
from ..bounds import AllBounds
from ..configs import Config
from ..networks.core import Network
from ..networks.recurrent import RecurrentNetwork
from ..networks.windows import WindowPolicy, rows_of
from .wrapper import Wrapper

Nest = Any
_KINDS = (Network, RecurrentNetwork, WindowPolicy)


@dataclasses.dataclass(frozen=True)
class IndependentConfig(Config):
    """Of agents that share no parameters."""

    num_agents: int | None = None
    """Agents of the environment; None: as many as an environment made by its id has."""

    bounds: ClassVar[AllBounds] = {"num_agents": (2, 100)}


class Independent(Wrapper):
    """Has each agent of an environment learn networks of its own (independent learners, Tan, 1993).

    Parameters of every network are a dict, `agent_0` to that of the last. All N compute every row
    of a batch, and each row takes the output of whose observation it is, so that a gradient step is
    N times the work of shared parameters; gradients of a row are those of its agent alone. Clipping
    by a global norm, and statistics of other wrappers, are of all agents together.
    """

    config_class: ClassVar[type] = IndependentConfig

    def make_networks(self, spec: EnvironmentSpec) -> Any:
        """The agent's, each as N of them.

        Raises:
          ValueError: if the environment has one agent, observations do not say whose they are, or
            the agent has networks of something else than observations.
        """
        networks = super().make_networks(spec)  # type: ignore[safe-super]
        count = self.config.num_agents
        if count is None:
            raise ValueError(
                f"{self.name} is of environments of several agents, as "
                "pettingzoo:mpe/simple_spread_v3; of one made in Python num_agents says how many "
                "there are."
            )
        if not self.networks_observe:
            raise ValueError(
                f"{self.name}: it has networks of states that it makes of observations, which do "
                "not say whose they are."
            )
        observations.require_indicator(spec.observations, count)
        return jax.tree.map(
            lambda one: independent(one, count) if isinstance(one, _KINDS) else one,
            networks,
            is_leaf=lambda one: isinstance(one, _KINDS),
        )


def independent(network: Any, count: int) -> Any:
    """N networks of one kind, of which each computes the rows of one agent.

    Args:
      network: a `Network`, `RecurrentNetwork` or `WindowPolicy` whose first input is observations.
      count: N.
    """
    names = [f"agent_{i}" for i in range(count)]

    def whose(observation: Nest) -> jax.Array:
        """int32 [B], or [] of one observation."""
        return jnp.argmax(observations.indicator(observation, count), -1)

    def init(key: jax.Array) -> dict[str, Nest]:
        keys = jax.random.split(key, count)
        return {name: network.init(one) for name, one in zip(names, keys, strict=True)}

    def apply(params: Nest, *inputs: Nest, key: jax.Array | None = None) -> Any:
        keys = [None] * count if key is None else jax.random.split(key, count)
        each = [
            network.apply(params[name], *inputs, **({} if key is None else {"key": one}))
            for name, one in zip(names, keys, strict=True)
        ]
        axes = _batch_axes(lambda *found: network.apply(params[names[0]], *found), inputs, each[0])
        return _select(whose(rows_of(inputs[0])), each, axes)

    def unroll(
        params: Nest, observation: Nest, state: Nest, first: jax.Array, burn_in: int = 0
    ) -> tuple[Nest, Nest]:
        each = [network.unroll(params[name], observation, state, first, burn_in) for name in names]
        agent = whose(jax.tree.map(lambda x: x[:, 0], observation))
        return _select(agent, each, jax.tree.map(lambda x: 0, each[0]))

    def step(params: Nest, observation: Nest, state: Nest) -> tuple[Nest, Nest]:
        each = [network.step(params[name], observation, state) for name in names]
        return _select(whose(observation), each, jax.tree.map(lambda x: 0, each[0]))

    made = {"init": init, "apply": apply, "unroll": unroll, "step": step}
    return network._replace(**{name: made[name] for name in network._fields if name in made})


def _batch_axes(apply: Callable[..., Any], inputs: tuple[Nest, ...], outputs: Nest) -> Nest:
    """Returns which axis of each output is the batch's: the one that doubles with the inputs'.
    Outputs of several critics as one network have it second."""

    def twice(x: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2 * x.shape[0], *x.shape[1:]), x.dtype)

    longer = jax.eval_shape(apply, *jax.tree.map(twice, inputs))

    def axis(one: Any, other: Any) -> int:
        return next(i for i, size in enumerate(one.shape) if other.shape[i] != size)

    return jax.tree.map(axis, outputs, longer)


def _select(agent: jax.Array, each: list[Any], axes: Nest) -> Any:
    """Returns the rows of the outputs of each agent that are its own.

    Args:
      agent: whose they are: [B], or [] where there are no rows.
      each: outputs, of every agent.
      axes: of B, in each output.
    """

    def select(axis: int, first: jax.Array, *others: jax.Array) -> jax.Array:
        shape = [-1 if i == axis else 1 for i in range(first.ndim)] if agent.ndim else ()
        rows, found = agent.reshape(shape), first
        for i, other in enumerate(others, 1):
            found = jnp.where(rows == i, other, found)
        return found

    return jax.tree.map(select, axes, *each)
