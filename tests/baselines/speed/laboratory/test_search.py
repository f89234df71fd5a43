"""The scripts that judge searches: what they are held against, and what their figures mean."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.catalogue import AGENTS
from troupe.baselines.speed.laboratory import cases, executed, heldout, search
from troupe.partitioning import Simulator, models
from troupe.partitioning.tactics.search.space import Space


def test_the_list_has_every_model_and_every_agent_by_a_name_of_its_own():
    names = {case.name for case in (*cases.LISTED, *cases.HELD_OUT)}
    assert len(names) == len(cases.LISTED) + len(cases.HELD_OUT)
    assert {case.model for case in cases.LISTED} >= {*models.CATALOGUE, *AGENTS}
    assert "mlp/larger/data=4,model=2/h200" in names


@pytest.mark.parametrize("model", sorted({case.model for case in cases.LISTED}))
def test_a_larger_size_is_larger(model):
    small, larger = (
        cases.Case(model, size, "data=8", "h200").example().state_shapes for size in (False, True)
    )
    assert elements(larger) > elements(small)


def elements(tree):
    return sum(np.prod(leaf.shape, dtype=int) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", heldout.MODELS)
def test_held_out_models_learn(name):
    example = heldout.make(name)
    state, batch = example.init(jax.random.key(0)), example.make_batch(jax.random.key(1))
    update = jax.jit(example.update)
    losses = []
    for _ in range(30):
        state, metrics = update(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state["params"]))


def test_a_weight_may_be_called_key():
    state, _ = models.mid_training(cases.make("film"))
    assert state["params"]["key"].dtype == np.float32


def test_estimates_order_plans_as_the_simulator_does():
    wide = {"batch": 512, "num_layers": 3, "width": 1024, "hidden": 4096, "optimizer": "adam"}
    row = search.estimating("mlp", wide, "data=4,model=2", "h200", 24)
    assert row["spearman_seconds"] > 0.9
    assert row["spearman_bytes"] > 0.9
    assert row["best_in_first_eight"]
    assert row["regret"] <= 0.03


def test_people_would_split_the_batch_over_axes_that_they_have_no_other_use_for():
    example = models.make("mlp")
    assert "batch:model,batch:data" in cases.schedules(example, ("data", "model"))
    assert "" in cases.schedules(example, ("data",))
    assert not any("model" in s for s in cases.schedules(example, ("data",)))


def test_a_list_that_was_stopped_goes_on(tmp_path):
    file = tmp_path / "rows.jsonl"
    case = cases.Case("towers", False, "data=8", "h200")
    first = search.freely([case], 5, file)
    kept = json.loads(file.read_text())
    assert first["rows"] == [kept]
    file.write_text(json.dumps({**kept, "ratio": 7.0}) + "\n")
    again = search.freely([case], 5, file)
    assert (again["cases"], again["worst"], again["beyond"]) == (1, 7.0, {case.name: 7.0})
    assert len(file.read_text().splitlines()) == 1


def test_what_was_found_runs_beside_what_is_listed():
    case = executed.Case("mlp", "data=8", {"batch": 16, "width": 8, "hidden": 16})
    row = executed.execute(case, Simulator("h200"), estimates=5, seconds=0.01)
    assert row["equal"]
    assert [one["schedule"] for one in row["rows"]][:2] == [executed.FOUND, ""]
    assert row["rounds"] >= 5
    measured = {one["schedule"]: one["measured"] for one in row["rows"]}
    assert all(seconds > 0 for seconds in measured.values())
    # Their times are those of this moment.
    rows = [{**row, "ratio": 0.8}, {**row, "equal": False, "ratio": 0.5}]
    summary = executed.in_all(rows)
    assert (summary["cases"], summary["equal"], summary["most_times_faster"]) == (2, 1, 2.0)


def test_what_is_wrong_is_seen():
    want = {"a": np.ones(4, np.float32), "n": np.arange(3)}
    assert executed.worst_error(want, want) == (0, 0)
    got = {**want, "a": np.array([1, 1, 1, 1.1], np.float32)}
    assert executed.worst_error(got, want) == (pytest.approx(0.05), 0)
    assert executed.worst_error(np.float32(0.9999), np.float32(1)) == (0, pytest.approx(1e-4, 1e-3))
    assert executed.Error(of_arrays=0, of_scalars=1e-4).is_rounding(terms=2**21)
    assert not executed.Error(of_arrays=0, of_scalars=1e-4).is_rounding(terms=2**10)
    assert not executed.Error(of_arrays=1e-4, of_scalars=0).is_rounding(terms=2**21)
    with pytest.raises(ValueError, match="1 of 3 integers differ"):
        executed.worst_error({**want, "n": np.array([0, 1, 3])}, want)
    with pytest.raises(ValueError, match="none"):
        executed.worst_error({**want, "a": np.full(4, np.nan, np.float32)}, want)


def test_sums_that_are_to_be_whole_stay_in_a_loop():
    """As the optimizer state is split over the batch's axis, so is what the loop adds up; every
    turn then sums whole gradients, which the estimate once took to happen after the loop."""
    case = cases.Case("film", True, "data=4,model=2", "tpu-v5e")
    plan = search.planned(case.example(), case.mesh, (), case.device)
    space = Space(plan.context(("tried",)), ("data", "model"))
    names = ("batch parallel over data", "batch parallel over model", "zero1 over data")
    moves = [move for name in names for move in space.moves if move.name == name]
    assert len(moves) == 3
    simulated = space.simulated(moves).predicted_seconds.total
    assert space.estimated(moves).seconds == pytest.approx(simulated, rel=0.2)


def test_zero_is_simulated_where_estimates_hold_it_for_dear():
    case = cases.Case("film", True, "data=4,model=2", "tpu-v5e")
    assert case in cases.HELD_OUT
    assert search.free(case, 300)["ratio"] <= 1.0
