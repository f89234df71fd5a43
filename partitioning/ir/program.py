"""The one intermediate representation: values, ops and programs.

The traced (global) program and the lowered (local) program are the same type. A local program has
local shapes, and holds the collectives of :data:`COLLECTIVES` as ordinary ops, so that profiler,
simulator and executor read one thing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

#: Ops that move data between devices. Their params:
#:   all_gather:     dim, axes (major to minor)
#:   all_reduce:     axes, monoid ("sum", "max", "min")
#:   reduce_scatter: dim, axes (major to minor), monoid ("sum")
#:   all_to_all:     split_dim, concat_dim, axes
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

#: Ops of a local program that move nothing but know where they run.
#:   all_slice:   slices, a tuple of axes (major to minor) for each dimension
#:   axis_offset: axes, size; the scalar int32 (linear index over the axes) * size
#:   random_part: this device's part of what random_bits (bit_width, shape) or random_split (shape)
#:                draws; parts, for each dimension of shape its axes
LOCAL = ("all_slice", "axis_offset", "random_part")

#: For each dimension of a value, the mesh axes it is tiled over, major to minor.
Layout = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Value:
    """One array of a program, known by identity.

    Attributes:
      shape: dimensions; local ones in a local program.
      dtype: numpy or extended (PRNG key) dtype.
      weak_type: True if the dtype is a Python scalar's.
      name: a name for messages, or "".
      path: where the value comes in or goes out ("state/params/linear/w"), or "".
      data: the array itself, for literals and constants; else None.
      layout: in a local program, how the global value is tiled; else None.
      partial: (axes, monoid) while a reduction over mesh axes is still owed; else None.
      whole: in a local program, the mesh axes on which a tactic wants the value kept whole.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    name: str = ""
    path: str = ""
    data: Any = None
    layout: Layout | None = None
    partial: tuple[tuple[str, ...], str] | None = None
    whole: tuple[str, ...] = ()

    def like(
        self,
        shape: tuple[int, ...] | None = None,
        layout: Layout | None = None,
        partial: tuple[tuple[str, ...], str] | None = None,
    ) -> Value:
        """A new value of this one's type, name and path: of its shape and layout too, if not told
        otherwise.
        """
        return Value(
            self.shape if shape is None else shape, self.dtype, self.weak_type, self.name,
            self.path, layout=self.layout if layout is None else layout, partial=partial,
        )  # fmt: skip

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(getattr(self.dtype, "itemsize", 0))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def type_text(self) -> str:
        """The type in short: "f32[8,16]"."""
        return f"{short_dtype(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        return f"Value({self.path or self.name or '_'}: {self.type_text()})"


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Op:
    """One operation.

    Attributes:
      name: the primitive's name, normalised over jax versions ("checkpoint" for remat2), or one of
        :data:`COLLECTIVES` or :data:`LOCAL`.
      primitive: the jax primitive, or None for collectives.
      inputs, outputs: values in order.
      params: the primitive's params without regions. "scan" always has num_consts, num_carry,
        length, reverse, unroll, and in a local program, where devices share its turns, turns: the
        axes over which they do, major to minor. "while" has cond_nconsts, body_nconsts, and, where
        its condition was a batch, masked: of how many leading dimensions of the carries.
      regions: sub-programs: the body of scan and checkpoint, (cond, body) of while, the branches of
        cond.
      effects: jax effects; an op that has any is never dropped.
      source_info: where jax says that it comes from; None for what nobody wrote.
      prefix: the name stack of the calls that it was inlined from.
    """

    name: str
    primitive: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    regions: tuple[Program, ...] = ()
    effects: Any = ()
    source_info: Any = None
    prefix: str = ""

    def on(
        self,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        params: dict[str, Any] | None = None,
        regions: tuple[Program, ...] = (),
    ) -> Op:
        """The same operation on other values; its params are these if not told otherwise."""
        return Op(
            self.name, self.primitive, tuple(inputs), tuple(outputs),
            self.params if params is None else params, regions, self.effects, self.source_info,
            self.prefix,
        )  # fmt: skip

    def beside(
        self,
        name: str,
        inputs: tuple[Value, ...],
        output: Value,
        params: dict[str, Any] | None = None,
        primitive: Any = None,
    ) -> Op:
        """Another op that stands where this one stood in the user's source: a collective, if it has
        no primitive.
        """
        return Op(
            name, primitive, inputs, (output,), params or {}, (), (), self.source_info, self.prefix
        )

    @property
    def trips(self) -> int:
        """The number of times its regions run, as far as is known: the length of a scan or of a
        pipeline's micro-batches, and at most of a loop that counts its turns; else 1.
        """
        if self.name == "while":
            from ..rules.counting import most_turns  # The package of rules is made of ops.

            return most_turns(self) or 1
        return self.params["length"] if self.name in ("scan", "pipeline") else 1

    @property
    def source(self) -> str:
        """The user's file and line, "file.py:12", or "" where jax does not know."""
        return source_line(self.source_info)

    @property
    def scope(self) -> str:
        """The name stack ("transpose(jvp(mlp))/linear"), outermost first."""
        return scope_of(self.source_info, self.prefix)

    @property
    def backward(self) -> bool:
        """True if differentiation made this op to compute cotangents."""
        return "transpose(" in self.scope

    def __repr__(self) -> str:
        inputs = ", ".join(v.type_text() for v in self.inputs)
        outputs = ", ".join(v.type_text() for v in self.outputs)
        return f"Op({self.name}({inputs}) -> {outputs})"


@dataclasses.dataclass(frozen=True)
class Signature:
    """The caller's pytrees of a top-level program's flat inputs and outputs.

    Attributes:
      names: the function's positional argument names.
      in_trees: one pytree definition per argument.
      out_tree: the result's pytree definition.
      ends: for each argument, the index past its last flat input.
    """

    names: tuple[str, ...]
    in_trees: tuple[Any, ...]
    out_tree: Any
    ends: tuple[int, ...]


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Program:
    """A straight line of ops in execution order.

    Attributes:
      inputs: values that come in.
      outputs: values that go out; may be inputs, constants, literals, or repeat.
      ops: operations, each after what it reads.
      constants: captured arrays (values with data) that ops read.
      signature: pytrees of a top-level program; None in a region.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: list[Op]
    constants: tuple[Value, ...] = ()
    signature: Signature | None = None

    def drop_dead(self) -> bool:
        """Drops ops without effects and without readers; True if there were any."""
        needed = set(self.outputs)
        kept: list[Op] = []
        for op in reversed(self.ops):
            if op.effects or any(v in needed for v in op.outputs):
                needed.update(op.inputs)
                kept.append(op)
        kept.reverse()
        changed = len(kept) != len(self.ops)
        self.ops = kept
        return changed

    def walk(self) -> Iterator[Op]:
        """Every op, those of regions right after the op that holds them."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()

    def walk_counted(self, times: int = 1) -> Iterator[tuple[Op, int]]:
        """Every op with how often it runs; `while` counts once, of `cond` every branch is given."""
        for op in self.ops:
            yield op, times
            for region in op.regions:
                yield from region.walk_counted(times * op.trips)

    def __str__(self) -> str:
        return format_program(self)

    def __repr__(self) -> str:
        return (
            f"Program({len(self.inputs)} inputs, {len(self.ops)} ops, {len(self.outputs)} outputs)"
        )


def is_over(op: Op, axis: str) -> bool:
    """True if an op of a local program is over an axis: a collective, or one of :data:`LOCAL`."""
    if op.name in COLLECTIVES:
        return axis in op.params["axes"]
    if op.name not in LOCAL:
        return False
    named = op.params.get("slices") or op.params.get("parts") or (op.params.get("axes"),)
    return any(axis in (axes or ()) for axes in named)


class Inlined:
    """The source info of an op of an inlined call: its own and, for want of a line, the call's.

    Ops of library functions that jax keeps traced have no line of the user's.
    """

    __slots__ = ("caller", "own")

    def __init__(self, own: Any, caller: Any):
        self.own = own
        self.caller = caller

    @property
    def name_stack(self) -> Any:
        return self.own.name_stack

    @property
    def traceback(self) -> Any:
        return self.own.traceback


_SHORT = {
    "float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c",
}  # fmt: skip


def short_dtype(dtype: Any) -> str:
    """A dtype's short name: f32, bf16, i32, bool, key<fry>."""
    name = getattr(dtype, "name", str(dtype))
    stem = name.rstrip("0123456789")
    return _SHORT.get(stem, stem) + name[len(stem) :] if stem in _SHORT else name


def source_line(source_info: Any) -> str:
    """The user's file and line in a jax source info, "file.py:12", or ""."""
    if source_info is None:
        return ""
    if isinstance(source_info, Inlined):
        return source_line(source_info.own) or source_line(source_info.caller)
    from jax._src import source_info_util  # jax shows frames nowhere publicly

    frame = (
        source_info_util.user_frame(source_info.traceback)
        if _FRAME_TAKES_TRACEBACK
        else (source_info_util.user_frame(source_info))
    )
    if frame is None:
        return ""
    return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.start_line}"


_FRAME_TAKES_TRACEBACK = tuple(int(p) for p in jax.__version__.split(".")[:2]) >= (0, 7)


def scope_of(source_info: Any, prefix: str) -> str:
    """The full name stack of an op that was inlined under `prefix`."""
    own = "" if source_info is None else str(source_info.name_stack)
    if not own and source_info is not None:
        # jax 0.6 prints nothing for transformations outside of any named scope; later ones "jvp()".
        for element in reversed(source_info.name_stack.stack):
            own = f"{element.name}({own})"
    return f"{prefix}/{own}" if prefix and own else prefix or own


#: Parameters of primitives that say nothing of what an op computes or how it may be split.
HIDDEN = frozenset(
    {
        "sharding",
        "out_sharding",
        "accuracy",
        "weak_type",
        "jvp_jaxpr_fun",
        "linear",
        "_split_transpose",
        "out_dtype",
    }
)


def format_program(program: Program, indent: int = 0, names: dict[Value, str] | None = None) -> str:
    """The program as text: one op per line with types, layouts and source lines."""
    names = dict(names or {})
    pad = "  " * indent

    def name(value: Value) -> str:
        if value not in names:
            if value.data is not None and value.size == 1 and not value.shape:
                return f"{value.data}"
            names[value] = f"%{len(names)}"
        return names[value]

    def typed(value: Value) -> str:
        text = f"{name(value)}:{value.type_text()}"
        if value.layout is not None and any(value.layout):
            text += "{" + ",".join("*".join(axes) or "-" for axes in value.layout) + "}"
        return text

    lines = []
    for value in program.inputs:
        lines.append(f"{pad}input {typed(value)}  {value.path}".rstrip())
    for value in program.constants:
        lines.append(f"{pad}constant {typed(value)}")
    for op in program.ops:
        params = ", ".join(
            f"{k}={_param_text(v)}"
            for k, v in op.params.items()
            if v is not None and k not in HIDDEN
        )
        line = f"{pad}{', '.join(typed(v) for v in op.outputs)} = {op.name}"
        line += f"({', '.join(name(v) for v in op.inputs)})"
        if params:
            line += f" [{params}]"
        if source := op.source:
            line += f"  # {source}"
        lines.append(line)
        for region in op.regions:
            lines.append(f"{pad}  {{")
            lines.append(format_program(region, indent + 2, names))
            lines.append(f"{pad}  }}")
    lines.append(f"{pad}return {', '.join(name(v) for v in program.outputs)}")
    return "\n".join(lines)


def _param_text(value: Any) -> str:
    if isinstance(value, (np.dtype, type)):
        return short_dtype(np.dtype(value)) if isinstance(value, np.dtype) else value.__name__
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."
