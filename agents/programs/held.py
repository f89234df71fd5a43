"""The form in which a program over several devices holds the state of an update between steps.

Most hold its nest as it is, every array spread over the devices. The stages of a pipeline pack what
each of them has, and unpack it for whoever saves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    from ...partitioning.pipelines.execution.packed import StatePacking

Nest = Any


class HeldState(NamedTuple):
    """A form of the state; every process of several must call its functions."""

    nest: Nest
    """Of the update's state, `jax.ShapeDtypeStruct` with shardings"""
    held: Nest
    """Of what steps take, likewise"""
    pack: Callable[[Nest], Nest]
    """From the update's state to what steps take"""
    unpack: Callable[[Nest], Nest]
    """And back"""
    spread: Callable[[Nest], Nest]
    """The same within a program that jax compiles: every array is on all devices then"""


def as_it_is(nest: Nest) -> HeldState:
    """The update's state itself.

    Args:
      nest: its shapes with shardings.
    """

    def same(state: Nest) -> Nest:
        return state

    return HeldState(nest, nest, same, same, same)


def by_stage(nest: Nest, packing: StatePacking) -> HeldState:
    """The update's state, packed by the stages of a pipeline.

    Args:
      nest: its shapes with shardings.
      packing: of its arrays.
    """
    structure = jax.tree.structure(nest)
    return HeldState(
        nest,
        packing.shapes,
        lambda state: packing.pack(jax.tree.leaves(state)),
        lambda packed: jax.tree.unflatten(structure, packing.unpack(packed)),
        lambda packed: jax.tree.unflatten(structure, packing.spread(packed)),
    )


def make_by_devices(make: Callable[..., Nest], shapes: Nest, compile_: Callable[..., Any]) -> Any:
    """A function that makes a nest, each array where it stays.

    Args:
      make: of arguments on the host, the nest.
      shapes: of it, with shardings. Arrays on the same devices are made in one program.
      compile_: compiles a function, given `out_shardings`.
    """
    leaves, structure = jax.tree.flatten(shapes)
    groups: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(leaf.sharding.mesh, []).append(number)

    def made(*args: Any) -> Nest:
        found: list[Any] = [None] * len(leaves)
        for numbers in groups.values():
            wanted = [leaves[number] for number in numbers]
            for number, array in zip(numbers, part(numbers, wanted, args), strict=True):
                found[number] = array
        return jax.tree.unflatten(structure, found)

    def part(numbers: list[int], wanted: list[Any], args: tuple[Any, ...]) -> list[Any]:
        if not wanted[0].sharding.addressable_devices:
            return list(map(absent, wanted))

        def some(*args: Any) -> list[Any]:
            every = jax.tree.leaves(make(*args))
            return [every[number] for number in numbers]

        found: list[Any] = compile_(some, out_shardings=[one.sharding for one in wanted])(*args)
        return found

    return made


def absent(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """An array of which this process holds nothing."""
    sharding: Any = shape.sharding
    return jax.make_array_from_single_device_arrays(shape.shape, sharding, [], dtype=shape.dtype)
