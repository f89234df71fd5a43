"""Traces a function on shapes into a :class:`~.program.Program`.

Calls (`jit`, `closed_call`, custom derivatives) are inlined; loops, branches and checkpoints stay
as ops with regions. What differs between jax versions is levelled out here, and nowhere else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core

from ..rules.composed import composition
from ..rules.traits import traits_of
from .program import Inlined, Op, Program, Signature, Value, scope_of, source_line

#: Primitives whose body is put in place of the call, with the parameter that holds the body.
_CALLS = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "composite": "jaxpr",
    "custom_vmap_call": "call",
}

#: Primitives that keep their bodies, with the parameters that hold them.
_REGIONS = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "checkpoint": ("jaxpr",),
}

#: Primitives whose bodies are programs of devices.
_PARTITIONED = ("shard_map", "xla_pmap")

#: Hints of how an array should lie, with the parameter that holds its sharding.
_HINTS = {"sharding_constraint": "sharding", "reshard": "dst_sharding"}

#: Names that differ between jax versions, or hide what a primitive is.
_NAMES = {"remat2": "checkpoint", "remat": "checkpoint", "add_any": "add"}


def trace(fn: Callable[..., Any], *args: Any) -> Program:
    """Traces `fn` to a program.

    Args:
      fn: a jax function of positional pytrees of arrays.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`; only shapes and dtypes are used.

    Returns:
      The program. `inputs` carry paths such as "state/params/linear/w"; `outputs` do where nothing
      else names them.

    Raises:
      ValueError: a part of it is partitioned already.
    """
    closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    program = _Tracer().program(closed, "")
    names = argument_names(fn, len(args))
    paths: list[str] = []
    trees, ends = [], []
    for name, arg in zip(names, args, strict=True):
        leaves, tree = jax.tree_util.tree_flatten_with_path(arg)
        paths.extend(path_text((name,), path) for path, _ in leaves)
        trees.append(tree)
        ends.append(len(paths))
    for value, path in zip(program.inputs, paths, strict=True):
        value.path = path
    out_leaves, out_tree = jax.tree_util.tree_flatten_with_path(out_shape)
    for value, (keys, _) in zip(program.outputs, out_leaves, strict=True):
        if not value.path and value.data is None:
            value.path = path_text(("out",), keys)
    program.signature = Signature(names, tuple(trees), out_tree, tuple(ends))
    return program


def argument_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Names of the first `count` positional arguments of `fn`; "arg0", ... where it does not
    tell.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}{i}" for i in range(count - len(names)))
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names.extend(f"arg{i}" for i in range(len(names), count))
    return tuple(names[:count])


def path_text(prefix: tuple[str, ...], path: Sequence[Any]) -> str:
    """A pytree path as text, its keys joined by "/"."""
    return "/".join(prefix + tuple(_key_text(key) for key in path))


def _key_text(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


class _Tracer:
    """Turns jaxprs into programs; holds nothing but the environment of one region at a time."""

    def program(self, closed: Any, prefix: str, caller: Any = None) -> Program:
        jaxpr = getattr(closed, "jaxpr", closed)
        consts = tuple(getattr(closed, "consts", ()))
        env: dict[Any, Value] = {}
        inputs = tuple(self._bind(env, var) for var in jaxpr.invars)
        constants: list[Value] = []
        self._constants(env, jaxpr, consts, constants)
        ops: list[Op] = []
        self._ops(env, jaxpr, prefix, ops, constants, caller)
        program = Program(inputs, tuple(_read(env, var) for var in jaxpr.outvars), ops)
        program.drop_dead()
        program.ops = _copy_sources(program.ops)
        used = {v for op in program.ops for v in op.inputs} | set(program.outputs)
        program.constants = tuple(c for c in constants if c in used)
        return program

    def _bind(self, env: dict[Any, Value], var: Any) -> Value:
        aval = var.aval
        value = Value(tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False)))
        env[var] = value
        return value

    def _constants(
        self, env: dict[Any, Value], jaxpr: Any, consts: tuple[Any, ...], constants: list[Value]
    ) -> None:
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            value = self._bind(env, var)
            value.data = const
            constants.append(value)

    def _ops(
        self,
        env: dict[Any, Value],
        jaxpr: Any,
        prefix: str,
        ops: list[Op],
        constants: list[Value],
        caller: Any = None,
    ) -> None:
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            name = _NAMES.get(name, name)
            inputs = tuple([_read(env, var) for var in eqn.invars])
            source = eqn.source_info if caller is None else Inlined(eqn.source_info, caller)
            if name in _PARTITIONED:
                where = source_line(source) or "an unknown line"
                raise ValueError(
                    f"the step holds {name} at {where}, which is partitioned already, by hand: "
                    "write that part for one device and the global batch, as the rest of it"
                )
            if (called := _called(name, eqn.params, inputs)) is not None:
                body, arguments = called
                inner = getattr(body, "jaxpr", body)
                inner_env: dict[Any, Value] = dict(zip(inner.invars, arguments, strict=True))
                self._constants(inner_env, inner, tuple(getattr(body, "consts", ())), constants)
                scope = scope_of(source, prefix)
                self._ops(inner_env, inner, scope, ops, constants, source)
                for var, out in zip(eqn.outvars, inner.outvars, strict=True):
                    env[var] = _read(inner_env, out)
                continue
            if (body := _composed(eqn)) is not None:
                made: dict[Any, Value] = dict(zip(body.jaxpr.invars, inputs, strict=True))
                self._constants(made, body.jaxpr, tuple(body.consts), constants)
                self._ops(made, body.jaxpr, scope_of(source, prefix), ops, constants, source)
                for var, out in zip(eqn.outvars, body.jaxpr.outvars, strict=True):
                    env[var] = _read(made, out)
                continue
            outputs = tuple([self._bind(env, var) for var in eqn.outvars])
            params, primitive = eqn.params, eqn.primitive
            if name in _HINTS:
                # It names axes of another mesh: what runs is the identity.
                params, primitive = _hint(params[_HINTS[name]], outputs[0].ndim), None
            regions: tuple[Program, ...] = ()
            if name in _REGIONS:
                params, regions = self._regions(name, eqn, scope_of(source, prefix), source)
                if params.get("masked"):  # the body reads the condition's constants too
                    inputs = inputs[: params["cond_nconsts"]] + inputs
            ops.append(
                Op(
                    name, primitive, inputs, outputs, params, regions, eqn.effects, source, prefix,
                )
            )  # fmt: skip

    def _regions(
        self, name: str, eqn: Any, scope: str, source: Any
    ) -> tuple[dict[str, Any], tuple[Program, ...]]:
        params = dict(eqn.params)
        bodies: list[Any] = []
        for key in _REGIONS[name]:
            body = params.pop(key)
            bodies.extend(body if isinstance(body, (tuple, list)) else (body,))
        regions = tuple(self.program(body, scope, source) for body in bodies)
        if name == "while" and regions[0].outputs[0].shape:
            again = self.program(bodies[0], scope, source)
            params, regions = loop_on_any(params, regions, again, scope, source)
        if name == "scan":
            if "ft_in" in params:
                consts, carry, _ = params["ft_in"].unpack()
                num_consts, num_carry = len(consts), len(carry)
            else:
                num_consts, num_carry = params["num_consts"], params["num_carry"]
            params = {
                "num_consts": num_consts, "num_carry": num_carry, "length": params["length"],
                "reverse": params["reverse"], "unroll": params["unroll"],
            }  # fmt: skip
        return params, regions


def _hint(sharding: Any, rank: int) -> dict[str, Any]:
    """The params of a hint: its dimensions' axes, and the same as the name of a tag."""
    spec = (*getattr(sharding, "spec", ()), *[None] * rank)[:rank]
    axes = [dim if isinstance(dim, tuple) else (dim,) for dim in spec]
    layout = tuple(tuple(a for a in dim if isinstance(a, str)) for dim in axes)
    names = [repr(dim[0] if len(dim) == 1 else dim or None) for dim in layout]
    return {"name": f"P({', '.join(names)})", "layout": layout}


def _called(
    name: str, params: dict[str, Any], inputs: tuple[Value, ...]
) -> tuple[Any, tuple[Value, ...]] | None:
    """The body that runs in place of a call, and its operands; None where the op is no call."""
    if name == "custom_linear_solve":
        # Its other functions serve differentiation, which is over.
        lengths = params["const_lengths"]
        start = lengths.matvec + lengths.vecmat
        own = inputs[start : start + lengths.solve]
        return params["jaxprs"].solve, own + inputs[sum(lengths) :]
    body = params.get(_CALLS[name]) if name in _CALLS else None
    return None if body is None else (body, inputs)


def _composed(eqn: Any) -> Any:
    """The body of a primitive that a library of jax composes of others; None of any other."""
    compose = composition(eqn.primitive.name)
    if compose is None:
        return None
    structs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in eqn.invars]
    return jax.make_jaxpr(functools.partial(compose, **eqn.params))(*structs)


def written(
    ops: list[Op], fn: Callable[..., Any], *values: Value, scope: str, source: Any
) -> tuple[Value, ...]:
    """Writes a function of values behind other ops.

    Args:
      ops: gets the ops of the function.
      fn: of arrays such as the values are.
      *values: its arguments.
      scope: the name stack that the ops get.
      source: jax's source info that they get.

    Returns:
      The function's results.
    """
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype, weak_type=v.weak_type) for v in values]
    made = trace(fn, *structs)
    outer = dict(zip(made.inputs, values, strict=True))
    for op in made.ops:
        op.inputs = tuple(outer.get(v, v) for v in op.inputs)
        op.source_info, op.prefix = source, scope
    ops += made.ops
    for value in made.outputs:
        value.path = ""
    return made.outputs


def loop_on_any(
    params: dict[str, Any],
    regions: tuple[Program, ...],
    again: Program,
    scope: str,
    source: Any,
) -> tuple[dict[str, Any], tuple[Program, ...]]:
    """Rewrites a `while` with a batched condition, as `vmap` makes it, to a scalar condition.

    It turns while the condition of any example holds. In each turn the examples with a true
    condition move on, and the carries of the others stay. The body therefore reads the condition's
    constants and computes the condition once more, as jax's own lowering does.

    Args:
      params: of the loop; `masked`, how many dimensions the condition had, is added.
      regions: condition [B, ...] and body; all carries are [B, ...].
      again: the condition once more, of values of its own.
      scope: the name stack of the loop.
      source: jax's source info of the loop.

    Returns:
      The new params, condition and body.
    """
    cond, body = regions
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    write = functools.partial(written, scope=scope, source=source)
    rank = cond.outputs[0].ndim
    cond.outputs = write(cond.ops, jnp.any, *cond.outputs)

    carries = body.inputs[body_consts:]
    renamed = dict(zip(again.inputs[cond_consts:], carries, strict=True))
    for op in again.ops:
        op.inputs = tuple(renamed.get(v, v) for v in op.inputs)
    (holds,) = (renamed.get(v, v) for v in again.outputs)

    changed = [i for i, v in enumerate(body.outputs) if v is not carries[i]]

    def move_on(holds: jax.Array, *values: jax.Array) -> list[jax.Array]:
        found = []
        for new, old in zip(values[: len(changed)], values[len(changed) :], strict=True):
            wide = lax.broadcast_in_dim(holds, new.shape, tuple(range(holds.ndim)))
            found.append(lax.select(wide, new, old))
        return found

    ops = again.ops + body.ops
    new, old = [body.outputs[i] for i in changed], [carries[i] for i in changed]
    results = list(carries)
    for i, value in zip(changed, write(ops, move_on, holds, *new, *old), strict=True):
        results[i] = value
    constants = again.constants + body.constants
    inner = Program(again.inputs[:cond_consts] + body.inputs, tuple(results), ops, constants)
    params = {**params, "body_nconsts": cond_consts + body_consts, "masked": rank}
    return params, (cond, inner)


def _read(env: dict[Any, Value], var: Any) -> Value:
    if isinstance(var, jex_core.Literal):
        aval: Any = var.aval
        return Value(
            tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False)), data=var.val
        )
    return env[var]


def _copy_sources(ops: list[Op]) -> list[Op]:
    """Gives every use of an array made from nothing its own copy, right before the use."""
    made: dict[Value, Op] = {}
    kept: list[Op] = []
    seen: set[Value] = set()
    for op in ops:
        if any(v in made for v in op.inputs):
            inputs = list(op.inputs)
            for i, value in enumerate(inputs):
                if value in made:
                    if value in seen:
                        source = made[value]
                        inputs[i] = value.like()
                        kept.append(source.on(source.inputs, (inputs[i],)))
                    else:
                        seen.add(value)
            op.inputs = tuple(inputs)
        if traits_of(op.name).source and all(v.data is not None for v in op.inputs):
            made[op.outputs[0]] = op
        kept.append(op)
    return kept
