"""Checks that an actor can run a policy, by tracing it on one observation."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from dm_env import specs

from ...agents import legal_actions
from ...agents.interfaces import ActorCore
from ...agents.snapshots import to_host
from ...environments import EnvironmentSpec, action_masks
from ..mistakes import Mistake, attempt, compare, describe, draws

Nest = Any


def trace(core: ActorCore, params: Nest, spec: EnvironmentSpec, which: str) -> str:
    """Traces a policy.

    Args:
      core: the policy.
      params: shapes of what actors get as "policy".
      spec: of the environment.
      which: policy it is, as messages call it: "exploring".

    Returns:
      What it does, in a few words.

    Raises:
      Mistake: where an actor cannot run it.
    """
    name = f"the {which} policy"
    if not isinstance(core, ActorCore):
        raise Mistake(
            f"make_policy returns a {type(core).__name__}; return an agents.ActorCore, such as "
            "acting.policies makes."
        )
    observation = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), spec.observations)
    state = attempt(
        f"{name}: init(key) cannot be traced",
        lambda: jax.eval_shape(lambda: core.init(jax.random.key(0))),
    )
    one = f"select_action gets one observation, {describe(observation)}, without a batch"
    chosen = attempt(
        f"{name}: select_action(params, observation, state) cannot be traced",
        lambda: jax.eval_shape(core.select_action, params, observation, state),
        hint=f"{one}: a network takes it as observation[None], and gives [0] of its result.",
    )
    if not isinstance(chosen, tuple) or len(chosen) != 2:
        raise Mistake(f"{name}: select_action returns {describe(chosen)}; return (action, state).")
    action, after = chosen
    expected = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), spec.actions)
    remedy = f"{one}; it returns one action."
    compare(f"{name}: the action", action, expected, remedy, exact=False)
    like = "Keep its structure, shapes and dtypes: actors pass it from step to step."
    compare(f"{name}: the state that select_action returns", after, state, like)
    extras = attempt(
        f"{name}: get_extras(before, after) cannot be traced",
        lambda: jax.eval_shape(core.get_extras, state, after),
    )
    if core.reset is not None:
        cleared = attempt(
            f"{name}: reset(state) cannot be traced", jax.eval_shape, core.reset, state
        )
        compare(f"{name}: the state that reset returns", cleared, state, like)
    moved = attempt(
        f"{name}: set_num_actions(state, count) cannot be traced",
        lambda: jax.eval_shape(core.set_num_actions, state, jax.ShapeDtypeStruct((), np.int32)),
    )
    compare(f"{name}: the state that set_num_actions returns", moved, state, like)
    if core.set_stream is not None:
        numbered = attempt(
            f"{name}: set_stream(state, number) cannot be traced",
            jax.eval_shape,
            core.set_stream,
            state,
            jax.ShapeDtypeStruct((), np.int32),
        )
        compare(f"{name}: the state that set_stream returns", numbered, state, like)
    if draws(core.select_action, params, observation, state):
        _check_key(core, name)
    stored = f", stores {describe(extras)}" if jax.tree.leaves(extras) else ""
    return f"{describe(action)}{stored}"


def check_actions(actions: Nest, spec: Nest, which: str, *, strict: bool) -> None:
    """Compares actions that a policy has chosen with their spec.

    Args:
      actions: [N, ...].
      spec: of one action.
      which: policy chose them.
      strict: whether the environment takes no real numbers outside of their bounds.

    Raises:
      Mistake: where one is not finite or outside of its bounds.
    """
    for (path, part), value in zip(
        jax.tree_util.tree_flatten_with_path(spec)[0], jax.tree.leaves(actions), strict=True
    ):
        array = np.asarray(value)
        where = f" at {jax.tree_util.keystr(path)}" if path else ""
        if not np.isfinite(array.astype(np.float64)).all():
            raise Mistake(
                f"the {which} policy chose an action that is not finite{where}: look for a "
                "division by 0, a logarithm of 0, or parameters that are not finite."
            )
        bounded = isinstance(part, specs.BoundedArray)
        if not bounded or not (strict or part.dtype.kind != "f"):
            continue
        outside = array[(array < part.minimum) | (array > part.maximum)]
        if outside.size:
            raise Mistake(
                f"the {which} policy chose {outside.flat[0]}{where}, and actions are from "
                f"{np.min(part.minimum)} to {np.max(part.maximum)}: bound the network's output, or "
                'say `actions = "clip"` in the builder.'
            )


def check_legal(actions: Nest, spec: Nest, observations: Nest, which: str) -> None:
    """Compares actions that a policy has chosen with the masks of the observations it was given.

    Args:
      actions: [N, ...].
      spec: of one action.
      observations: [N, ...]
      which: policy chose them.

    Raises:
      Mistake: where one is illegal.
    """
    mask = legal_actions.of(observations)
    if mask is None:
        return
    masks, taken = np.asarray(mask), np.asarray(actions)
    for legal, action, fits in zip(
        masks, taken, action_masks.allowed(masks, spec, taken), strict=True
    ):
        if not fits:
            parts = [np.flatnonzero(part).tolist() for part in action_masks.split(legal, spec)]
            raise Mistake(
                f"the {which} policy chose {action.tolist()}, and legal were "
                f"{parts if spec.shape else parts[0]}, as the observation's action_mask says: "
                "choose with agents.legal_actions, or say in the builder that it honours none: "
                "`honours_action_masks = False`."
            )


def check_fresh(before: Nest, after: Nest, which: str) -> None:
    """Raises Mistake where the state of a policy that draws does not change with a step."""
    same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), to_host(before), to_host(after))
    if all(jax.tree.leaves(same)):
        raise Mistake(
            f"the {which} policy draws random numbers and its state stays as it is, so that they "
            "are the same at every step: split the key, or fold in a count, and return the new "
            "state."
        )


def _check_key(core: ActorCore, name: str) -> None:
    """Raises where the state of a policy that draws does not depend on its key."""
    one, other = (to_host(jax.jit(core.init)(jax.random.key(seed))) for seed in (0, 1))
    same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), one, other)
    if all(jax.tree.leaves(same)):
        raise Mistake(
            f"{name} draws random numbers and its init ignores the key, so that all environments "
            "and seeds would draw the same: put the key into the state that init returns."
        )
