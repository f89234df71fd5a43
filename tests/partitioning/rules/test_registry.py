"""Every primitive that jax emits for the models has a rule, or is listed as deliberately without
one; and every one that is listed has traits that hold.
"""

from __future__ import annotations

import ast
import pathlib
import typing

import pytest

from troupe import partitioning
from troupe.agents import examples
from troupe.partitioning.ir.program import COLLECTIVES, LOCAL
from troupe.partitioning.ir.trace import trace
from troupe.partitioning.rules import (
    has_rule,
    listed,
    register,
    rows,
    table,
    traits_of,
    without_rule,
)
from troupe.partitioning.rules.traits import PLACED, TABLE, UNKNOWN, Flops
from troupe.partitioning.simulator import costs


@pytest.mark.parametrize("name", sorted(examples.NAMES))
def test_every_primitive_of_a_step_is_listed_and_has_traits(name: str) -> None:
    example = examples.make(name)
    program = trace(example.update, example.state_shapes, example.batch_shapes)
    assert sorted({op.name for op in program.walk() if not listed(op.name)}) == []
    plain = {op.name for op in program.walk() if not op.regions}
    assert sorted(name for name in plain if traits_of(name) is UNKNOWN) == []


COMMON = """
    dot_general conv_general_dilated reduce_sum reduce_max argmax broadcast_in_dim reshape
    transpose squeeze slice pad concatenate split rev iota dynamic_slice gather scatter-add
    sort random_wrap random_unwrap dynamic_update_slice cumsum reduce_min reduce_and
    reduce_or clamp top_k reduce_window_max cholesky triangular_solve fft select_n
    convert_element_type unstack
"""


def test_what_common_training_steps_emit_has_rules() -> None:
    assert [name for name in COMMON.split() if not has_rule(name)] == []


def test_duplicates_are_refused() -> None:
    with pytest.raises(ValueError, match="'sin' already has an entry"):
        register("sin", "elementwise", "twice")
    with pytest.raises(ValueError, match="'sin' already has an entry"):
        without_rule(["sin"], "twice")


def test_a_primitive_without_traits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'sine' has no traits; give it a row in .*traits\.py"):
        register("sine", "elementwise", "a new one")
    with pytest.raises(ValueError, match="'sine' has no traits"):
        without_rule(["sine"], "a new one")
    assert not listed("sine")


def test_traits_and_registry_hold_the_same_primitives() -> None:
    # Ops with regions have no traits: what they are is what is inside.
    registered = {name for family, name, _ in rows() if family != "structure"}
    assert registered | set(PLACED) == set(TABLE)
    assert set(PLACED) == {*COLLECTIVES, *LOCAL}


def test_only_rules_know_primitives_by_name() -> None:
    """No other file compares a name with a primitive's; those of regions and collectives are not
    in question: they say how a program is built.
    """
    root = pathlib.Path(partitioning.__file__).parent
    primitives = set(TABLE) - set(PLACED) - {"reduce"}  # what compilers call a kernel, too
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] in ("rules", "models"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and getattr(node.left, "attr", "") == "name":
                named = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not named & primitives, f"{path}:{node.lineno}"


def test_every_kind_of_flops_has_a_formula() -> None:
    assert set(costs._FLOPS) == set(typing.get_args(Flops))


def test_the_table_lists_every_primitive_once() -> None:
    text = table()
    for _, name, _ in rows():
        assert text.count(f"`{name}`") == 1
