"""Every mistake of a user's gets one message that names the offender, its path, the sizes and the
remedy.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from troupe import partitioning as pt

STATE = {"params": {"up": {"w": jax.ShapeDtypeStruct((6, 8), jnp.float32)}}}
BATCH = {"x": jax.ShapeDtypeStruct((8, 6), jnp.float32)}


def update(state: Any, batch: Any) -> Any:
    def loss(params: Any) -> jax.Array:
        return jnp.mean((batch["x"] @ params["up"]["w"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)}, value


def plan(schedule: list[Any], mesh: dict[str, int] | None = None, **options: Any) -> pt.Plan:
    return pt.partition(update, pt.Mesh(mesh or {"data": 4, "model": 2}), schedule, **options).plan(
        STATE, BATCH
    )


def test_a_pattern_that_matches_nothing_lists_near_misses() -> None:
    with pytest.raises(
        ValueError, match=r"'mine'.*'state/params/up/v' matches no.*state/params/up/w"
    ):
        plan([pt.Manual("mine", {"state/params/up/v": 0}, "data")])


def test_a_dimension_that_does_not_divide() -> None:
    with pytest.raises(
        ValueError,
        match=r"'mine': dimension 0 of state/params/up/w, of size 6 does not divide by axis "
        r"'data' of size 4",
    ):
        plan([pt.Manual("mine", {"state": 0}, "data")])


def test_what_fails_while_it_is_tried_names_the_tactic() -> None:
    with pytest.raises(ValueError, match=r"'batch parallel': dimension 0 of batch/x, of size 8"):
        plan([pt.tactics.batch_parallel("data")], {"data": 3})


def test_a_dimension_that_is_tiled_already_counts() -> None:
    first = pt.Manual("first", {"batch": 0}, "data")
    with pytest.raises(
        ValueError, match=r"batch/x, of size 8, already tiled over \['data'\], does not divide"
    ):
        plan([first, pt.Manual("second", {"batch": 0}, "model")], {"data": 4, "model": 4})


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"batch/x has shape \(8, 6\) and no dimension 2"):
        plan([pt.Manual("mine", {"batch": 2}, "data")])


def test_an_axis_that_is_not_in_the_mesh() -> None:
    with pytest.raises(
        ValueError, match=r"tactic 'zero3': mesh data=4,model=2 has no axis 'dta'; its axes are"
    ):
        plan([pt.tactics.zero3("dta")])


def test_too_few_devices() -> None:
    step = pt.partition(update, pt.Mesh({"data": 64}), [pt.tactics.batch_parallel("data")])
    shapes = jax.tree.map(
        lambda s: jnp.zeros((64 if s.shape == (8, 6) else 6, *s.shape[1:])), (STATE, BATCH)
    )
    step.plan(*shapes)
    with pytest.raises(ValueError, match=r"mesh data=64 needs 64 devices; jax has 8"):
        step(*shapes)
    with pytest.raises(ValueError, match="needs 2 devices and was given 1"):
        pt.Mesh({"data": 2}, devices=jax.devices()[:1])


def test_a_tactic_that_contradicts_an_earlier_one() -> None:
    with pytest.raises(
        ValueError,
        match=r"'late' wants batch/x.*dimension 1 over axis 'model', but tactic 'early' already "
        r"has it",
    ):
        plan([pt.Manual("early", {"batch": 0}, "model"), pt.Manual("late", {"batch": 1}, "model")])
    with pytest.raises(ValueError, match="already has it replicated"):
        plan(
            [
                pt.Manual("early", {"state": pt.REPLICATED}, "model"),
                pt.Manual("late", {"state": 0}, "model"),
            ]
        )


def test_an_argument_of_another_shape_or_type() -> None:
    step = pt.partition(update, pt.Mesh({"data": 4}), [pt.Manual("batch", {"batch": 0}, "data")])
    with pytest.raises(ValueError, match=r"batch/x, of size 7 does not divide"):
        step(
            *jax.tree.map(
                lambda s: np.zeros((7, 6) if s.shape == (8, 6) else s.shape, "f"), (STATE, BATCH)
            )
        )
    with pytest.raises(TypeError, match=r"'text' of type str, which is no array"):
        step.plan("text", BATCH)


def test_a_schedule_that_is_none() -> None:
    with pytest.raises(TypeError, match="schedule holds 'zero3', which is no tactic"):
        plan(["zero3"])
    with pytest.raises(TypeError, match=r"the tactic 'zero3' alone; put it in a list"):
        plan(pt.tactics.zero3("data"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pt.parse_schedule\('zero3:data'\)"):
        plan("zero3:data")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'batch' has 'first'; give a dimension"):
        pt.Manual("mine", {"batch": "first"}, "data")
    with pytest.raises(TypeError, match=r"mesh must be a pt\.Mesh"):
        pt.partition(update, {"data": 4}, [])  # type: ignore[arg-type]


def test_an_unknown_argument() -> None:
    step = pt.partition(update, pt.Mesh({"data": 2}), [], donate=("sate",))
    for use in (step.plan, step.compile):
        with pytest.raises(
            ValueError, match=r"donate names 'sate'.*the arguments are \['state', 'batch'\]"
        ):
            use(STATE, BATCH)


def test_a_step_within_a_transformation() -> None:
    step = pt.partition(update, pt.Mesh({"data": 2}), [pt.tactics.batch_parallel("data")])
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape), (STATE, BATCH))
    step(*zeros)
    for transformed in (
        jax.jit(step),
        jax.grad(lambda state, batch: step(state, batch)[1]),
        jax.vmap(step, (None, 0)),
        lambda *args: jax.eval_shape(step, *args),
    ):
        with pytest.raises(TypeError, match=r"within a transformation.*pt.partition\(jax.grad"):
            transformed(*zeros)


def test_arguments_by_name() -> None:
    step = pt.partition(update, pt.Mesh({"data": 2}), [pt.tactics.batch_parallel("data")])
    assert step.plan(batch=BATCH, state=STATE) is step.plan(STATE, BATCH)
    assert step.compile(STATE, batch=BATCH) is step.compile(STATE, BATCH)
    with pytest.raises(
        TypeError, match=r"positional arguments \['state', 'batch'\].*\['bacth'\] by name"
    ):
        step.plan(STATE, bacth=BATCH)


def test_symbolic_shapes() -> None:
    (rows,) = export.symbolic_shape("rows")
    step = pt.partition(update, pt.Mesh({"data": 2}), [])
    with pytest.raises(TypeError, match=r"symbolic shape \('rows', '6'\).*once for each size"):
        step.plan(STATE, {"x": jax.ShapeDtypeStruct((rows, 6), jnp.float32)})


def test_a_mesh_without_axes() -> None:
    with pytest.raises(ValueError, match=r"at least one axis; write e.g. pt.Mesh"):
        pt.Mesh({})


def test_megatron_says_why_there_is_no_pair() -> None:
    def notes(fn: Any, model: int, *shapes: tuple[int, ...]) -> str:
        def step(state: Any, x: jax.Array) -> Any:
            grads = jax.grad(lambda state: jnp.sum(fn(state, x) ** 2))(state)
            return jax.tree.map(jnp.subtract, state, grads)

        state = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
        mesh, schedule = pt.Mesh({"model": model}), [pt.tactics.megatron("model")]
        x = jax.ShapeDtypeStruct((4, shapes[0][0]), jnp.float32)
        return "".join(pt.partition(step, mesh, schedule).plan(state, x).steps[-1].notes)

    def pair(w: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ w[0]) @ w[1]

    assert not notes(pair, 4, (6, 8), (8, 6))
    assert "divides by model=4: state/0 [6, 10] and state/1 [10, 6] share 10" in notes(
        pair, 4, (6, 10), (10, 6)
    )
    alone = notes(lambda w, x: x @ w[0], 4, (6, 8))
    assert alone.startswith("no pair of matrices: what none of them makes")
    assert alone.endswith("state/0 [6, 8]")
    assert "reads the state" in notes(lambda w, x: x + w[0], 4, (6,))


def test_megatron_leaves_the_mesh_as_it_is_while_it_looks_for_why() -> None:
    def step(w: Any, x: jax.Array) -> Any:
        grads = jax.grad(lambda w: jnp.sum((jax.nn.relu(x @ w[0]) @ w[1]) ** 2))(w)
        return jax.tree.map(jnp.subtract, w, grads)

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((6, 10), (10, 6), (4, 6))]
    plan = pt.partition(step, pt.Mesh({"model": 4}), []).plan(shapes[:2], shapes[2])
    context = plan.context(("megatron",))
    context.mesh = context.state.mesh = MappingProxyType({"model": 4})  # type: ignore[assignment]
    assert not pt.tactics.megatron("model").actions(context)
    assert "share 10" in context.notes[0]


def test_nothing_to_feed() -> None:
    with pytest.raises(ValueError, match="no argument besides the state has a dimension 3"):
        plan([pt.tactics.batch_parallel("data", dim=3)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data", "'data' is not AXIS=SIZE"),
        ("data=x", "'data=x' is not AXIS=SIZE"),
        ("data=2,data=4", "'data' is given twice"),
        ("", "has no axes"),
        ("data=0", "size 0"),
    ],
)
def test_meshes_that_do_not_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pt.parse_mesh(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch", "'batch' is not TACTIC:AXIS"),
        ("bach:data", "no tactic 'bach'; there are auto, batch, embedding"),
    ],
)
def test_schedules_that_do_not_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pt.parse_schedule(text)


def test_an_op_without_a_rule_in_a_loop_is_named_with_its_line() -> None:
    def looped(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return carry + jax.random.gamma(jax.random.key(0), jnp.exp(carry)), None

        return jax.lax.scan(body, x, None, length=3)[0]

    step = pt.partition(looped, pt.Mesh({"data": 4}), [pt.Manual("batch", {"x": 0}, "data")])
    found = step.plan(jax.ShapeDtypeStruct((8, 2), jnp.float32))
    (note,) = found.steps[-1].notes
    assert note.startswith("random_gamma at test_errors.py:")
    assert "once per turn of the loop" in note


def test_explaining_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="'state/nothing' matches no input, output or tag"):
        plan([]).explain("state/nothing")


def test_mistakes_are_found_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    step = pt.partition(update, pt.Mesh({"data": 4}), [pt.Manual("mine", {"state": 0}, "data")])
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(ValueError, match="does not divide"):
        step.plan(STATE, BATCH)
