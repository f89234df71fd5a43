"""The limit that arithmetic sets to an update: its matrix products, and nothing else.

A loop of numpy, or of XLA where that is faster, computes as many products of the same sizes, on as
many threads as either takes: all cores, unless OMP_NUM_THREADS says less.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

Nest = Any
Size = tuple[int, int, int, int]
"""(B, M, K, N) of B products of [M, K] with [K, N] at once."""


def products(step: Callable[..., Any], *shapes: Nest) -> dict[Size, float]:
    """Counts the products of each size in a step; of a choice each branch counts in part.

    Args:
      step: traceable.
      *shapes: of its arguments.

    Returns:
      Size to a count; nothing at all where there are convolutions, which are not counted.
    """
    found: collections.defaultdict[Size, float] = collections.defaultdict(float)
    program = jax.make_jaxpr(step)(*shapes).jaxpr
    return dict(found) if _count(program, 1.0, found) else {}


def _count(program: Any, times: float, found: dict[Size, float]) -> bool:
    """Adds the products of a program; True if nothing else in it is counted as work."""
    for equation in program.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "conv_general_dilated":
            return False
        if name == "dot_general":
            (of_left, of_right), (batch, batch_right) = params["dimension_numbers"]
            left, right = (v.aval.shape for v in equation.invars)
            free = [size for i, size in enumerate(left) if i not in (*of_left, *batch)]
            others = [size for i, size in enumerate(right) if i not in (*of_right, *batch_right)]
            at_once, depth = (math.prod(left[i] for i in dims) for dims in (batch, of_left))
            found[at_once, math.prod(free), depth, math.prod(others)] += times
        inner = [part for value in params.values() for part in _programs(value)]
        each = times * params.get("length", 1) if name == "scan" else times
        each /= len(inner) if name == "cond" else 1
        if not all(_count(part, each, found) for part in inner):
            return False
    return True


def _programs(value: Any) -> list[Any]:
    if isinstance(value, jex_core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, jex_core.Jaxpr):
        return [value]
    return [part for one in value for part in _programs(one)] if isinstance(value, tuple) else []


def seconds(counts: dict[Size, float], budget: float = 2.0) -> float:
    """Seconds that a loop of these products takes, each measured for its part of `budget` seconds.

    By numpy and by XLA, as neither has the better code for every processor and size; and the
    best of several rounds of either: what the processor can do, whoever else it has to serve.
    """
    total, each = 0.0, budget / (2 * len(counts))
    for (b, m, k, n), count in counts.items():
        batch = (b,) if b > 1 else ()
        left, right = np.ones((*batch, m, k), np.float32), np.ones((*batch, k, n), np.float32)
        repeats = min(max(1, round(1e8 / (2 * b * m * k * n))), 1_000)
        ways = (_by_numpy(left, right, repeats), _by_xla(left, right, repeats))
        total += count * min(_best(way, each) for way in ways) / repeats
    return total


def _by_numpy(left: np.ndarray, right: np.ndarray, repeats: int) -> Callable[[], None]:
    out = np.matmul(left, right)

    def run() -> None:
        for _ in range(repeats):
            np.matmul(left, right, out=out)

    return run


def _by_xla(left: np.ndarray, right: np.ndarray, repeats: int) -> Callable[[], None]:
    multiply, operands = jax.jit(jnp.matmul), jax.device_put((left, right))

    def run() -> None:
        jax.block_until_ready([multiply(*operands) for _ in range(repeats)])

    run()  # It compiles.
    return run


def _best(run: Callable[[], None], budget: float) -> float:
    """The least seconds of a call, of those that begin within `budget` seconds; one at least."""
    best, until = math.inf, time.perf_counter() + budget
    while best == math.inf or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
