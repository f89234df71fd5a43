"""The automatic tactic: what is alike is one class, estimates order plans as the simulator does,
and searches find what people would say, whatever arrays are called."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from typing import Any

import jax
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.agents import examples
from troupe.partitioning import models
from troupe.partitioning.decide.repropagate import apply_tactic
from troupe.partitioning.simulator.device import Curve
from troupe.partitioning.simulator.presets import get_device
from troupe.partitioning.tactics.search.classes import ClassGraph
from troupe.partitioning.tactics.search.space import Space
from troupe.partitioning.tactics.search.tree import Search

MESH = pt.Mesh({"data": 4, "model": 2})
WIDE = {"batch": 512, "num_layers": 3, "width": 1024, "hidden": 4096, "optimizer": "adam"}
#: A device so slow that even the smallest step is worth splitting.
SLOW = dataclasses.replace(
    get_device("h200"),
    name="slow",
    matmul_flops={"float32": 1e7},
    vector_flops=1e7,
    kernel_seconds=1e-9,
)


def planned(
    example: models.Example, *schedule: pt.Tactic, device: Any = "h200", mesh: pt.Mesh = MESH
) -> pt.Plan:
    step = pt.partition(
        example.update, mesh, schedule, donate=("state",), simulate=pt.Simulator(device)
    )
    return step.plan(example.state_shapes, example.batch_shapes)


def seconds(plan: pt.Plan) -> float:
    return plan.steps[-1].simulation.predicted_seconds.total


def auto(*axes: str, estimates: int = 60, **budget: Any) -> pt.Automatic:
    return pt.Automatic(axes, budget=pt.Budget(estimates=estimates, judged=3, **budget))


def decided(plan: pt.Plan) -> dict[str, Any]:
    return {v.path: plan.state.layout(v) for v in plan.graph.program.inputs}


@functools.cache
def space(name: str, **sizes: Any) -> Space:
    return Space(planned(examples.make(name, **sizes)).context(("tried",)), ("data", "model"))


# -- folding --------------------------------------------------------------------------------------


def test_more_layers_make_no_more_classes() -> None:
    plans = [planned(models.make("mlp", num_layers=n, optimizer="adam")) for n in (10, 20)]
    few, many = (ClassGraph(plan.graph, plan.state) for plan in plans)
    assert len(many.graph.nodes) > 1.9 * len(few.graph.nodes)
    assert len(many.nodes) == len(few.nodes) < 0.6 * len(few.graph.nodes)
    assert sum(len(nodes) for nodes in many.by_op.node_members.values()) == len(many.graph.nodes)


def test_what_is_decided_for_one_class_alone_parts_it() -> None:
    example = models.make("mlp", num_layers=6, optimizer="adam")
    one = planned(example, pt.Manual("one", {"state/params/layer_3/up/w": 1}, "model"))
    classes = ClassGraph(one.graph, one.state)
    (marked,) = (v for v in one.graph.program.inputs if v.path == "state/params/layer_3/up/w")
    assert classes.members[classes.class_of[marked]] == [marked]


@pytest.mark.parametrize("names", ["batch:data", "megatron:model", "batch:data,zero3:data"])
def test_decisions_on_classes_are_those_on_members(names: str) -> None:
    found = space("transformer", num_layers=3)
    known = {(type(m.tactic), m.axis): m for m in found.moves if m.tactic is not None}
    start = len(found.state.journal)
    for tactic in pt.parse_schedule(names):
        move = known[type(tactic), tactic.axis]
        found.enter(move.actions_on_classes)
        apply_tactic(found.context, move.actions(found.context), move.axis, found.judge.work)
    by_class, whole = found.state, found.context.state
    classes = found.classes
    for part, stands in classes.chains.of.items():
        dims = classes.chains.dims.get(part) or range(len(part.rule.sizes))
        for node in classes.by_op.node_members[part]:
            factors = {axis: dims[factor] for axis, factor in whole.factors.get(node, {}).items()}
            assert str(factors) == str(by_class.factors.get(stands, {}))
    by_class.rewind(start)
    whole.rewind(0)


def test_where_two_tilings_meet_in_a_chain_it_takes_one_of_them() -> None:
    found = space("transformer", num_layers=3)
    known = {(type(m.tactic), m.axis): m for m in found.moves if m.tactic is not None}
    start = len(found.state.journal)
    open_ = []
    for tactic in pt.parse_schedule("zero3:model,batch:data,zero1:data"):
        open_ += found.enter(known[type(tactic), tactic.axis].actions_on_classes) or []
    whole = [c for c in open_ if c.axis not in found.state.factors.get(c.node, ())]
    found.state.rewind(start)
    assert not {c.node for c in whole} & set(found.classes.chains.parts)


# -- estimates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "impala", "experts"])
def test_a_whole_program_is_estimated_as_it_is_simulated(name: str) -> None:
    found = space(name)
    estimated, simulated = found.estimated(()), found.simulated(())
    assert estimated.seconds == pytest.approx(simulated.predicted_seconds.total, rel=1e-6)
    assert estimated.peak == pytest.approx(simulated.peak_memory_bytes, rel=0.03)


def test_a_part_of_a_kernel_is_less_efficient_than_the_whole() -> None:
    device = dataclasses.replace(
        get_device("h200"),
        efficiency={"matmul": {"float32": Curve((1e6, 1e12), (0.01, 1.0))}},
        memory_efficiency=Curve((1e4, 1e9), (1.0, 0.1)),
    )
    plan = planned(models.make("mlp", **WIDE), device=device)
    found = Space(plan.context(("tried",)), ("data", "model"))
    (chosen,) = [move for move in found.moves if move.name == "batch parallel over data"]
    for moves in [], [chosen]:
        estimated, simulated = found.estimated(moves), found.simulated(moves)
        seconds = simulated.predicted_seconds
        assert estimated.compute == pytest.approx(seconds.compute, rel=0.02)


@pytest.mark.parametrize("names", ["zero3 over model", "zero3 over model; zero3 over data"])
def test_gradients_made_whole_find_no_room_in_shares_of_arguments(names: str) -> None:
    """Half of them are cut where they are read, an eighth as soon as it is there."""
    found = space("mlp", **WIDE)
    moves = {move.name: move for move in found.moves}
    chosen = [moves[name] for name in names.split("; ")]
    estimated, simulated = found.estimated(chosen), found.simulated(chosen)
    assert estimated.peak == pytest.approx(simulated.peak_memory_bytes, rel=0.1)


def test_what_is_read_within_a_later_kernel_is_waited_for_there() -> None:
    found = space("mlp", **WIDE)
    baseline, reads = found.estimate.baseline, found.estimate.def_use.uses
    read_at = {
        reads[value][node][0][0]: baseline.runs[node.op][0]
        for node in found.classes.by_op.node_members
        if node.op in baseline.runs
        if baseline.runs[node.op][0] > baseline.places.of[node.op]
        for value in node.op.inputs
        if node in reads.get(value, {})
    }
    assert read_at
    assert list(read_at) == list(read_at.values())


def test_what_comes_out_of_a_loop_is_not_read_there() -> None:
    found = space("lstm")
    for loop in found.classes.graph.program.walk():
        for value in loop.outputs if loop.regions else ():
            stands = found.classes.class_of.get(value)
            for node, (first, _) in found.estimate.def_use.uses.get(stands, {}).items():
                at = found.estimate.def_use.member_index[value]
                assert first[at] > found.estimate.baseline.places.of[loop], node


def test_an_estimate_does_not_depend_on_what_was_estimated_before() -> None:
    found = space("mlp", **WIDE)
    pool = random.Random(0).sample(found.moves, 6)
    first = [found.estimated((a, b)) for a in pool for b in pool if a is not b]
    again = [found.estimated((a, b)) for a in pool[::-1] for b in pool[::-1] if a is not b]
    assert [round(e.seconds * 1e12) for e in first] == [
        round(e.seconds * 1e12) for e in again[::-1]
    ]
    assert {e.peak for e in first} == {e.peak for e in again}


@pytest.mark.parametrize("name", ["transformer", "experts", "impala"])
def test_what_a_search_estimates_is_what_it_is_from_nothing(name: str) -> None:
    found = Space(planned(examples.make(name)).context(("tried",)), ("data", "model"))
    search = Search(found, lambda estimated: estimated.seconds, 60, None, seed=0)
    search.run()
    assert len(search.candidates) > 20
    assert max(len(c.moves) for c in search.candidates) > 1
    afresh = Space(planned(examples.make(name)).context(("tried",)), ("data", "model"))
    moves = dict(zip(found.moves, afresh.moves, strict=True))
    for candidate in search.candidates:
        if all(move in moves for move in candidate.moves):
            again = afresh.estimated([moves[move] for move in candidate.moves])
            assert again.seconds == pytest.approx(candidate.estimated.seconds, rel=1e-9)
            assert again.peak == pytest.approx(candidate.estimated.peak, rel=1e-9)


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_a_move_that_had_nothing_left_to_decide_has_nothing_further_on(name: str) -> None:
    mesh = pt.Mesh({"data": 2, "model": 2, "expert": 2})
    found = Space(planned(examples.make(name), mesh=mesh).context(("tried",)), tuple(mesh.axes))
    search = Search(found, lambda estimated: estimated.seconds, 120, None, seed=0)
    search.run()
    passed_on = 0
    for node in search.known.values():
        search.restore(node)
        here = len(search.state.journal)
        for move in node.idle:
            assert found.enter(move.actions_on_classes) is None
            assert len(search.state.journal) == here
            passed_on += move not in node.tried
    search.state.rewind(search.base)
    assert passed_on > 0


# -- searches -------------------------------------------------------------------------------------


def test_a_search_is_at_least_as_good_as_what_people_would_say() -> None:
    example = models.make("mlp", **WIDE)
    least = min(seconds(planned(example, *pt.parse_schedule(s))) for s in ("", *example.schedules))
    found = planned(example, auto("model", "data", estimates=120))
    assert seconds(found) <= least


def test_what_is_not_worth_splitting_is_left_whole() -> None:
    found = planned(models.make("mlp"), auto("model", "data"))
    assert all(not any(layout) for layout in decided(found).values())
    assert "it splits nothing, which is predicted to be quickest" in str(found)
    assert not found.warnings
    by_hand = planned(models.make("mlp"), *pt.parse_schedule("auto:data,zero1:model"))
    assert len(by_hand.warnings) == 1
    assert "split over model=2" in by_hand.warnings[0]


def test_a_persons_decisions_stay_and_tactics_after_it_work() -> None:
    example = models.make("mlp", **WIDE)
    before, after = pt.parse_schedule("batch:data,zero3:data")
    found = planned(example, before, auto("model"), after)
    alone = planned(example, before)
    kept = alone.state.journal
    assert [(d.axis, d.what) for d in found.state.journal[: len(kept)]] == [
        (d.axis, d.what) for d in kept
    ]
    assert found.collectives["reduce_scatter"] > 0
    assert [step.name for step in found.steps] == ["batch parallel", "automatic", "zero3"]


def test_a_step_without_buffers_between_its_arguments_and_results_is_searched() -> None:
    def update(state: Any, batch: Any) -> Any:
        weights, momentum = state
        loss = lambda w: (((batch[0] @ w[0] @ w[1]) - batch[1]) ** 2).sum()  # noqa: E731
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(weights))
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum

    a, b, x, y = (
        jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 64), (64, 1), (32, 64), (32, 1))
    )
    simulator = pt.Simulator(pt.nearest(jax.devices()[0], MESH.size))
    step = pt.partition(update, MESH, [auto("model", "data")], simulate=simulator)
    assert step.plan(((a, b), (a, b)), (x, y)).steps[-1].log.estimates > 1


def test_equal_seeds_decide_equally() -> None:
    example = models.make("mlp", **WIDE)
    first, second = (planned(example, auto("model", "data", seed=3)) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_names_do_not_matter() -> None:
    example = models.make("mlp", **WIDE)
    names = [f"layer_{i}" for i in range(WIDE["num_layers"])]
    new = dict(zip(names, ("zebra", "alpha", "mole"), strict=True))

    def renamed(tree: Any, table: dict[str, str]) -> Any:
        if isinstance(tree, dict):
            return {table.get(k, k): renamed(v, table) for k, v in tree.items()}
        return tree

    def update(state: Any, batch: Any) -> Any:
        state, metrics = example.update(renamed(state, {v: k for k, v in new.items()}), batch)
        return renamed(state, new), metrics

    plain = planned(example, auto("model", "data"))
    step = pt.partition(update, MESH, [auto("model", "data")], donate=("state",))
    other = step.plan(renamed(example.state_shapes, new), example.batch_shapes)
    back = {
        "/".join({v: k for k, v in new.items()}.get(p, p) for p in path.split("/")): layout
        for path, layout in decided(other).items()
    }
    assert back == decided(plain)


def test_what_was_found_runs_and_equals_the_whole_step() -> None:
    example = models.make("mlp", num_layers=2, batch=16, optimizer="adam")
    step = pt.partition(example.update, MESH, [auto("model", "data")], simulate=pt.Simulator(SLOW))
    arguments = models.mid_training(example)
    plan = step.plan(*arguments)
    assert any(any(layout) for layout in decided(plan).values())
    got, wanted = jax.device_get((step(*arguments), jax.jit(example.update)(*arguments)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_shuffled_minibatches_are_found_to_be_a_batch() -> None:
    example = examples.make("ppo")
    found = planned(example, auto("data"), device=SLOW, mesh=pt.Mesh({"data": 4}))
    by_hand = planned(example, *pt.parse_schedule("batch:data"), device=SLOW, mesh=found.mesh)
    assert seconds(found) <= 1.02 * seconds(by_hand)


def test_a_plan_tells_what_was_searched() -> None:
    example = models.make("mlp", **WIDE)
    found = planned(example, *pt.parse_schedule("batch:data"), auto("model"))
    log = json.loads(found.to_json())["steps"][-1]["search"]
    assert 1 <= log["estimates"] <= 60
    assert log["judged"][0]["why"] == "taken"
    assert [point[1] for point in log["best"]] == sorted(
        (point[1] for point in log["best"]), reverse=True
    )
    assert "candidates estimated on" in str(found)
    told = found.explain("state/params/layer_1/up/w")
    assert "by 'automatic': move 1 of" in told
    assert "saves" in told


def test_what_a_search_simulated_is_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    predict = pt.Simulator.predict

    def counted(self: pt.Simulator, *args: Any) -> Any:
        made.append(1)
        return predict(self, *args)

    monkeypatch.setattr(pt.Simulator, "predict", counted)
    found = planned(models.make("mlp", **WIDE), auto("model", "data"))
    searched = len(made)
    log = found.steps[-1].log
    # A move that clearly pays is not simulated without.
    assert searched < len(log.judged) + len(log.saves)
    assert seconds(found) == log.judged[0].seconds
    assert len(made) == searched


def test_what_a_move_saves_is_what_the_step_takes_longer_without_it() -> None:
    example = models.make("mlp", **WIDE)
    found = planned(example, auto("model", "data"))
    log = found.steps[-1].log
    whole = planned(example, *[])
    space = Space(whole.context(("tried",)), ("model", "data"))
    moves = [next(m for m in space.moves if m.name == name) for name in log.judged[0].moves]
    for i, saved in enumerate(log.saves):
        without = space.simulated([*moves[:i], *moves[i + 1 :]]).predicted_seconds.total
        assert saved == pytest.approx(without - seconds(found), rel=0.2, abs=0.1 * seconds(found))


def test_a_schedule_in_text_may_say_auto() -> None:
    tactic = pt.parse_schedule("batch:data,auto:model+data")[1]
    assert isinstance(tactic, pt.Automatic)
    assert (tactic.axes, tactic.axis) == (("model", "data"), "model+data")


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: pt.Budget(estimates=0),
            r"Budget\(estimates=0\): it is a whole number of at least",
        ),
        (lambda: pt.Budget(seconds=0), r"Budget\(seconds=0\): it is a time above 0"),
        (lambda: pt.Goal(memory=2.0), r"Goal\(memory=2.0\): it is a share of the device's memory"),
        (lambda: pt.Automatic(()), r"Automatic\(axes=\(\)\): name one or more different axes"),
        (lambda: pt.parse_schedule("auto:a+a"), "name one or more different axes"),
    ],
)
def test_what_cannot_be_is_said_at_once(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"tactic 'automatic': mesh .* has no axis 'modle'"):
        planned(models.make("mlp"), auto("data", "modle"))


def test_a_goal_that_nothing_reaches() -> None:
    goal = pt.Goal(memory=1e-9)
    with pytest.raises(ValueError, match="the arguments alone need"):
        planned(models.make("mlp", **WIDE), pt.Automatic(("data", "model"), goal=goal))
    # Over one axis the batch and the state cannot be split eight ways.
    held = planned(models.make("mlp", **WIDE)).steps[-1].simulation.memory.arguments
    tight = dataclasses.replace(get_device("h200"), memory_bytes=held // 3)
    with pytest.raises(ValueError, match="split as far as it can be over model"):
        planned(
            models.make("mlp", **WIDE),
            pt.Automatic(("model",), goal=pt.Goal(memory=1.0)),
            device=tight,
        )
    example = models.make("mlp", **{**WIDE, "batch": 65536})
    need = planned(example).steps[-1].simulation.peak_memory_bytes
    small = dataclasses.replace(get_device("h200"), memory_bytes=need // 12)
    hard = pt.Automatic(("model",), goal=pt.Goal(memory=1.0), budget=pt.Budget(estimates=20))
    with pytest.raises(ValueError, match="infeasible: of the plans found the smallest needs"):
        planned(example, hard, device=small)
