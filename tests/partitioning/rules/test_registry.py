"""Every primitive that jax emits for the examples has a rule, or is listed as deliberately without
one.
"""

from __future__ import annotations

import pytest

from troupe.baselines.speed import steps
from troupe.partitioning.ir.trace import trace
from troupe.partitioning.rules import has_rule, listed, register, rows, table, without_rule


@pytest.mark.parametrize("name", sorted(steps.NAMES))
def test_every_primitive_of_an_example_is_listed(name: str) -> None:
    example = steps.make(name)
    program = trace(example.update, example.state_shapes, example.batch_shapes)
    assert sorted({op.name for op in program.walk() if not listed(op.name)}) == []


def test_what_common_training_steps_emit_has_rules() -> None:
    expected = [
        "dot_general",
        "conv_general_dilated",
        "reduce_sum",
        "reduce_max",
        "argmax",
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "slice",
        "pad",
        "concatenate",
        "split",
        "rev",
        "iota",
        "dynamic_slice",
        "gather",
        "scatter-add",
        "sort",
        "random_wrap",
        "random_unwrap",
        "dynamic_update_slice",
        "cumsum",
        "reduce_min",
        "reduce_and",
        "reduce_or",
        "clamp",
        "top_k",
        "reduce_window_max",
        "cholesky",
        "triangular_solve",
        "fft",
        "select_n",
        "convert_element_type",
        "unstack",
    ]
    assert [name for name in expected if not has_rule(name)] == []


def test_duplicates_are_refused() -> None:
    with pytest.raises(ValueError, match="'sin' already has an entry"):
        register("sin", "elementwise", "twice")
    with pytest.raises(ValueError, match="'sin' already has an entry"):
        without_rule(["sin"], "twice")


def test_the_table_lists_every_primitive_once() -> None:
    text = table()
    for _, name, _ in rows():
        assert text.count(f"`{name}`") == 1
