"""Runs programs: a local one under `shard_map`, a global one anywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .draws import draw
from .program import Layout, Op, Program, Value


def evaluate(
    program: Program,
    args: Sequence[Any],
    mesh: Mapping[str, int] | None = None,
    bundle: bool = False,
) -> list[Any]:
    """Runs a program on arrays, under whatever transformation is going on.

    Args:
      program: global, or local (then within `shard_map`).
      args: an array for each of `program.inputs`.
      mesh: axis sizes, for a local program.
      bundle: True if sums over devices wait until one of them is read, and are then exchanged in
        one message.
    """
    run = functools.partial(evaluate, mesh=mesh, bundle=bundle)
    waiting: dict[Value, tuple[Op, Any]] = {}
    env: dict[Value, Any] = {}
    for value in program.constants:
        env[value] = value.data
    for value, arg in zip(program.inputs, args, strict=True):
        env[value] = arg
    last = _last_uses(program)
    for op, dead in zip(program.ops, last, strict=True):
        if not waiting.keys().isdisjoint(op.inputs):
            env.update(_exchange(waiting))
        operands = [value.data if value.data is not None else env[value] for value in op.inputs]
        if bundle and op.name == "all_reduce" and op.params["monoid"] == "sum":
            waiting[op.outputs[0]] = op, operands[0]
            continue
        if op.regions:
            results = _REGIONS[op.name](op, operands, run)
        elif op.primitive is None:
            results = (_COLLECTIVES[op.name](op, mesh, *operands),)
        else:
            results = op.primitive.bind(*operands, **op.params)
            if not op.primitive.multiple_results:
                results = (results,)
        for value, result in zip(op.outputs, results, strict=True):
            env[value] = result
        for value in dead:
            del env[value]
    env.update(_exchange(waiting))
    return [env[v] if v in env else _constant(v) for v in program.outputs]


def _constant(value: Value) -> Any:
    return value.data if _extended(value) else _convert(value, value.data)


def _last_uses(program: Program) -> list[list[Value]]:
    """For each op the values that nothing after it reads."""
    kept = set(program.outputs)
    dead: list[list[Value]] = []
    seen: set[Value] = set()
    for op in reversed(program.ops):
        gone = [
            v for v in dict.fromkeys(op.inputs + op.outputs) if v not in seen and v.data is None
        ]
        seen.update(gone)
        dead.append([v for v in gone if v not in kept])
    dead.reverse()
    return dead


# Regions.


def _scan(op: Op, operands: list[Any], run: Run) -> Sequence[Any]:
    (body,) = op.regions
    consts, carry = op.params["num_consts"], op.params["num_carry"]
    carries = body.inputs[consts : consts + carry]

    def step(carried: Any, x: Any) -> tuple[Any, Any]:
        results = run(body, [*operands[:consts], *carried, *x])
        return _all_as(carries, results[:carry]), tuple(results[carry:])

    init = _all_as(carries, operands[consts : consts + carry])
    last, stacked = lax.scan(
        step, init, tuple(operands[consts + carry :]), length=op.params["length"],
        reverse=op.params["reverse"], unroll=op.params["unroll"],
    )  # fmt: skip
    return (*last, *stacked)


def _while(op: Op, operands: list[Any], run: Run) -> Sequence[Any]:
    cond, body = op.regions
    cond_consts, body_consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    shared = operands[:cond_consts], operands[cond_consts : cond_consts + body_consts]
    carried = body.inputs[body_consts:]

    def test(carry: Any) -> Any:
        return run(cond, [*shared[0], *carry])[0]

    def step(carry: Any) -> Any:
        return _all_as(carried, run(body, [*shared[1], *carry]))

    init = _all_as(carried, operands[cond_consts + body_consts :])
    return lax.while_loop(test, step, init)


def _cond(op: Op, operands: list[Any], run: Run) -> Sequence[Any]:
    index, *rest = operands

    def branch(region: Program) -> Callable[..., Any]:
        def evaluated(*args: Any) -> Any:
            return _all_as(op.outputs, run(region, args))

        return evaluated

    index = index.astype(jnp.int32) if index.dtype == bool else index
    return lax.switch(index, [branch(region) for region in op.regions], *rest)


def _checkpoint(op: Op, operands: list[Any], run: Run) -> Sequence[Any]:
    # What jax itself emits for a differentiated checkpoint: the barrier keeps the compiler from
    # sharing the recomputation with the forward pass.
    if op.params.get("differentiated") and op.params.get("prevent_cse"):
        operands = list(lax.optimization_barrier(tuple(operands)))
    return run(op.regions[0], operands)


#: Evaluates a region on arrays.
Run = Callable[..., list[Any]]

_REGIONS: dict[str, Callable[..., Sequence[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "checkpoint": _checkpoint,
}


def _as(value: Value, array: Any) -> Any:
    """The array with exactly the dtype and weak type that a carry or branch must have."""
    if _extended(value):
        return array
    aval = jax.typeof(array)
    if aval.dtype == value.dtype and bool(getattr(aval, "weak_type", False)) == value.weak_type:
        return array
    return _convert(value, array)


def _all_as(values: Sequence[Value], arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_as(v, x) for v, x in zip(values, arrays, strict=True))


def _extended(value: Value) -> bool:
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


def _convert(value: Value, array: Any) -> Any:
    # The primitive itself, because the public function loses weak types.
    return lax.convert_element_type_p.bind(
        array, new_dtype=value.dtype, weak_type=value.weak_type, sharding=None
    )


# Collectives.


def _on_words(fn: Callable[[Any], Any], x: Any) -> Any:
    """Applies a collective to the words of PRNG keys, which collectives themselves do not take."""
    if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return fn(x)
    return jax.random.wrap_key_data(fn(jax.random.key_data(x)), impl=jax.random.key_impl(x))


def _all_reduce(op: Op, mesh: Any, x: Any) -> Any:
    axes, monoid = op.params["axes"], op.params["monoid"]
    if monoid == "sum":
        return lax.psum(x, axes)
    if monoid in ("and", "or"):
        reduce = lax.pmin if monoid == "and" else lax.pmax
        return reduce(x.astype(jnp.int32), axes).astype(x.dtype)
    reduce = lax.pmax if monoid == "max" else lax.pmin
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _of_floats(reduce, monoid, x, axes)
    return reduce(x, axes)


def _of_floats(reduce: Any, monoid: str, x: Any, axes: Sequence[str]) -> Any:
    """The largest or smallest float over axes; NaN where there is one, as in `jnp.max`.

    Collectives of floats drop NaN, on CPU at least. Integers whose order is that of the floats
    carry it, as the first of all.
    """
    wide = x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    dtype = jnp.dtype(f"int{8 * wide.dtype.itemsize}")
    largest = jnp.iinfo(dtype).max

    def turned(bits: Any) -> Any:  # Of negative floats a larger one has less bits; its own inverse.
        return jnp.where(bits < 0, bits ^ largest, bits)

    order = turned(lax.bitcast_convert_type(wide, dtype))
    nan = largest if monoid == "max" else jnp.iinfo(dtype).min
    found = reduce(jnp.where(jnp.isnan(wide), nan, order), axes)
    return lax.bitcast_convert_type(turned(found), wide.dtype).astype(x.dtype)


def _exchange(waiting: dict[Value, tuple[Op, Any]]) -> dict[Value, Any]:
    """Sums over devices, those of one kind as one array; leaves nothing waiting."""
    kinds: dict[Any, list[tuple[Value, Any]]] = {}
    for value, (op, x) in waiting.items():
        kinds.setdefault((tuple(op.params["axes"]), x.dtype), []).append((value, x))
    waiting.clear()
    summed: dict[Value, Any] = {}
    for (axes, _), parts in kinds.items():
        if len(parts) == 1:
            ((value, x),) = parts
            summed[value] = lax.psum(x, axes)
            continue
        # Fused into the concatenation, a reduction would be computed for each element of it.
        rows = lax.optimization_barrier([x.reshape(-1) for _, x in parts])
        whole = lax.psum(jnp.concatenate(rows), axes)
        ends = np.cumsum([x.size for _, x in parts])[:-1]
        for (value, x), part in zip(parts, jnp.split(whole, ends), strict=True):
            summed[value] = part.reshape(x.shape)
    return summed


def _all_gather(op: Op, mesh: Any, x: Any) -> Any:
    return _on_words(
        lambda y: lax.all_gather(y, op.params["axes"], axis=op.params["dim"], tiled=True), x
    )


def _reduce_scatter(op: Op, mesh: Any, x: Any) -> Any:
    return lax.psum_scatter(x, op.params["axes"], scatter_dimension=op.params["dim"], tiled=True)


def _all_to_all(op: Op, mesh: Any, x: Any) -> Any:
    split, concat = op.params["split_dim"], op.params["concat_dim"]
    return _on_words(lambda y: lax.all_to_all(y, op.params["axes"], split, concat, tiled=True), x)


class Coordinates(dict[str, int]):
    """Axis sizes, with this device's place on each axis as data.

    In jax 0.6 the compiler may not know what to make of a device's own number where nothing but a
    branch reads it, as around calls of the host.

    Attributes:
      places: an integer scalar for each axis.
    """

    def __init__(self, axes: Mapping[str, int], places: Mapping[str, Any]):
        super().__init__(axes)
        self.places = places


def _index(axes: Sequence[str], mesh: Mapping[str, int]) -> Any:
    index: Any = 0
    for axis in axes:
        known = isinstance(mesh, Coordinates)
        place = mesh.places[axis] if known else lax.axis_index(axis)  # type: ignore[attr-defined]
        index = index * mesh[axis] + place
    return index


def _all_slice(op: Op, mesh: Any, x: Any) -> Any:
    (result,) = op.outputs
    for dim, axes in enumerate(op.params["slices"]):
        if axes:
            size = result.shape[dim]
            x = lax.dynamic_slice_in_dim(x, _index(axes, mesh) * size, size, dim)
    return x


def _axis_offset(op: Op, mesh: Any) -> Any:
    return (_index(op.params["axes"], mesh) * op.params["size"]).astype(jnp.int32)


def _random_part(op: Op, mesh: Any, keys: Any) -> Any:
    sizes = op.outputs[0].shape[keys.ndim :]
    starts = [_index(axes, mesh) * n for axes, n in zip(op.params["parts"], sizes, strict=True)]
    return draw(keys, op.params["shape"], starts, sizes, op.params.get("bit_width"))


def _identity(op: Op, mesh: Any, x: Any) -> Any:
    return x


_COLLECTIVES: dict[str, Callable[..., Any]] = {
    "sharding_constraint": _identity,
    "reshard": _identity,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_slice": _all_slice,
    "axis_offset": _axis_offset,
    "random_part": _random_part,
}


def spec_of(layout: Layout) -> jax.sharding.PartitionSpec:
    """A layout as jax's PartitionSpec."""
    parts = [axes[0] if len(axes) == 1 else axes or None for axes in layout]
    while parts and parts[-1] is None:
        parts.pop()
    return jax.sharding.PartitionSpec(*parts)
