"""A program's fingerprint: equal for equal programs, in every process and on every machine."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any

import numpy as np

from .program import HIDDEN, Program, Value, short_dtype

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(program: Program) -> str:
    """A hash of the ops, types, parameters, literals and paths of a program, in hexadecimal.

    Names of functions in a callback's parameters count; source lines, layouts, and the contents of
    captured arrays do not.
    """
    lines: list[str] = []
    _write(program, lines, {})
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def input_texts(program: Program) -> tuple[str, ...]:
    """Path and type of every input: "batch/x f32[8,6]"."""
    return tuple(f"{v.path} {v.type_text()}" for v in program.inputs)


def _write(program: Program, lines: list[str], numbers: dict[Value, int]) -> None:
    def told(value: Value) -> str:
        if value.data is not None and value not in numbers:
            return f"{value.type_text()}={value.data}" if not value.shape else value.type_text()
        return f"%{numbers[value]}"

    def named(value: Value) -> str:
        numbers[value] = len(numbers)
        return f"%{numbers[value]}:{value.type_text()}{'w' * value.weak_type}"

    lines.append("in " + " ".join(f"{named(v)}@{v.path}" for v in program.inputs))
    lines.append("constants " + " ".join(map(named, program.constants)))
    for op in program.ops:
        params = ",".join(
            f"{k}={_text(v)}" for k, v in sorted(op.params.items()) if k not in HIDDEN
        )
        inputs = " ".join(map(told, op.inputs))
        lines.append(f"{op.name}[{params}]({inputs}) -> {' '.join(map(named, op.outputs))}")
        for region in op.regions:
            _write(region, lines, numbers)
    lines.append("out " + " ".join(map(told, program.outputs)))


def _text(value: Any) -> str:
    """A parameter as text that does not depend on where it lies in memory."""
    if isinstance(value, np.dtype):
        return short_dtype(value)
    if isinstance(value, functools.partial):
        return f"partial({_text(value.func)})"
    if isinstance(value, (set, frozenset)):
        return str(sorted(map(_text, value)))
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_text, value))})"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return _ADDRESS.sub("", str(value))
