"""Seconds of work on this machine's devices, where others may be at work as well."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def clock() -> Callable[[], float]:
    """The clock of a measurement: of CPU seconds on CPU, which others' work does not lengthen."""
    on_cpu = jax.default_backend() == "cpu"
    return time.process_time if on_cpu else time.perf_counter


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that a call takes until its results are there."""
    now = clock()
    start = now()
    jax.block_until_ready(function(*arguments))
    return now() - start


def in_turn(variants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least seconds of each variant, which take turns; each is called once before.

    Args:
      variants: by name.
      rounds: calls that are measured.
    """
    for call in variants.values():
        jax.block_until_ready(call())
    best = dict.fromkeys(variants, math.inf)
    for _ in range(rounds):
        for name, call in variants.items():
            best[name] = min(best[name], seconds(call))
    return best
