"""Networks made from an environment's spec. Haiku inside, pure functions outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from ...environments.specs import EnvironmentSpec
from .. import action_spaces

Nest = Any


class Network(NamedTuple):
    """A pair of pure functions: `init(key) -> params` and `apply(params, observation, ...)`.

    `apply` takes observations with a leading batch dimension [B, ...]. Where there are noisy layers
    it takes a `key` too, of the draw; without one they have none.
    """

    init: Callable[[jax.Array], Nest]
    apply: Callable[..., Any]

    def apply_one(self, params: Nest, *inputs: Nest) -> Any:
        """`apply` of one observation, without a batch dimension in what comes and goes."""
        output = self.apply(params, *jax.tree.map(lambda x: x[None], inputs))
        return jax.tree.map(lambda x: x[0], output)


def dummy(spec: Nest, *leading: int) -> Nest:
    """Zeros of a spec, with leading dimensions."""
    return jax.tree.map(lambda s: jnp.zeros((*leading, *s.shape), s.dtype), spec)


def with_float32_parameters(module: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls haiku modules, with parameters that are float32 wherever they compute.

    Modules ask for parameters of their inputs' dtype: they are made and kept as float32, and cast
    where they are used. So features in bfloat16 are all that half precision takes; gradients and
    the optimizer's state are float32 with the parameters.
    """

    def create(next_creator: Any, shape: Any, dtype: Any, init: Any, context: Any) -> jax.Array:
        return next_creator(shape, jnp.float32, init)

    def get(next_getter: Any, value: jax.Array, context: Any) -> jax.Array:
        return next_getter(value.astype(context.original_dtype))

    def call(*inputs: Any) -> Any:
        with hk.custom_creator(create), hk.custom_getter(get):
            return module(*inputs)

    return call


def from_haiku(module: Callable[..., Any], *inputs: Nest) -> Network:
    """A network from a function that calls haiku modules; those that draw random numbers do so
    where `apply` is given a key. Its parameters are float32, see `with_float32_parameters`."""
    transformed: Any = hk.transform(with_float32_parameters(module))

    def apply(params: Nest, *inputs: Nest, key: jax.Array | None = None) -> Any:
        return transformed.apply(params, key, *inputs)

    return Network(lambda key: transformed.init(key, *inputs), apply)


def require_discrete(agent: str, spec: EnvironmentSpec) -> int:
    """The number of actions.

    Raises:
      ValueError: where actions are anything but one discrete choice.
    """
    if action_spaces.kinds_of(spec.actions) == {action_spaces.CHOICE}:
        return int(spec.actions.num_values)
    raise action_spaces.refusal(agent, spec.actions, action_spaces.CHOICE)


def require_box(agent: str, spec: EnvironmentSpec) -> specs.BoundedArray:
    """The spec of the actions, with bounds of the actions' shape.

    Raises:
      ValueError: where actions are anything but real numbers between finite bounds.
    """
    actions = spec.actions
    if action_spaces.kinds_of(actions) == {action_spaces.BOX}:
        low, high = (np.broadcast_to(x, actions.shape) for x in (actions.minimum, actions.maximum))
        return actions.replace(minimum=low, maximum=high)
    raise action_spaces.refusal(agent, actions, action_spaces.BOX)
