"""What plans say of their predictions: the device, the limit, the error, both ends of overlap."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models
from troupe.partitioning.command import main
from troupe.partitioning.printing import report
from troupe.partitioning.simulator import at_hand, pictures
from troupe.partitioning.simulator.errors import error_of
from troupe.partitioning.simulator.memory import memory_of
from troupe.partitioning.simulator.presets import DEVICES, get_device

DATA = pt.Mesh({"data": 4})


def planned(simulator=None, schedule="batch:data,zero3:data", mesh=DATA, **sizes):
    example = models.make("mlp", **{"batch": 512, "width": 512, "hidden": 2048, **sizes})
    step = pt.partition(
        example.update, mesh, pt.parse_schedule(schedule), donate=("state",), simulate=simulator
    )
    return step.plan(example.state_shapes, example.batch_shapes)


def has(monkeypatch, kind, **stats):
    """Lets a machine have one device of a kind, whose backend runs."""
    device = types.SimpleNamespace(
        platform="cpu" if kind == "cpu" else "gpu", device_kind=kind, memory_stats=lambda: stats
    )
    monkeypatch.setattr(at_hand.jax, "devices", lambda: [device])
    monkeypatch.setattr(at_hand.xla_bridge, "backends_are_initialized", lambda: True)


def test_a_plan_is_for_the_device_at_hand_and_its_memory(monkeypatch):
    has(monkeypatch, "NVIDIA A100-SXM4-40GB", bytes_limit=31 * 2**30)
    plan = planned()
    cost = plan.steps[-1].simulation
    assert cost.device.name == "a100-40gb"
    assert cost.device.memory_bytes == 31 * 2**30
    assert "predicted for a100-40gb (the device at hand) with 31.0 GiB of 37.3 GiB" in str(plan)
    assert "as jax hands out here" in str(plan)
    has(monkeypatch, "NVIDIA A100-SXM4-40GB", bytes_limit=cost.peak_memory_bytes - 1)
    assert not planned().steps[-1].simulation.fits


@pytest.mark.parametrize(
    ("kind", "why"),
    [("cpu", "no accelerator is at hand"), ("Tesla V100", "no preset is known of Tesla V100")],
)
def test_a_device_that_is_assumed_is_said_to_be(monkeypatch, kind, why, capsys):
    has(monkeypatch, kind)
    assert f"predicted for h200 (assumed, as {why})" in str(planned())
    assert "assumed" not in str(planned(pt.Simulator("h200")))
    flags = ["--model", "mlp", "--mesh", "data=2", "--schedule", "batch:data"]
    assert main(flags) == 0
    assert f"h200 (assumed, as {why})" in capsys.readouterr().out
    assert main([*flags, "--device", "h100", "--memory", "40GB"]) == 0
    printed = capsys.readouterr().out
    assert "h100-sxm with 37.3 GiB of 74.5 GiB, as --memory is 40GB" in printed
    assert "assumed" not in printed


def test_no_backend_is_started_to_plan(monkeypatch, tmp_path):
    """Before one runs, NVIDIA's driver is asked, where jax could use it."""
    monkeypatch.setattr(at_hand.xla_bridge, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(at_hand.jax, "devices", lambda: pytest.fail("started a backend"))
    assert at_hand.device_at_hand().name == "h200"
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "information").write_text("Model: \t\t NVIDIA L40S\nIRQ: 1\n")
    monkeypatch.setattr(at_hand, "_DRIVER", tmp_path)
    monkeypatch.setattr(
        at_hand.importlib.metadata,
        "entry_points",
        lambda group: [types.SimpleNamespace(name="xla_cuda13")],
    )
    for platforms, name in (("cuda,cpu", "l40s"), ("cpu", "h200")):
        config = types.SimpleNamespace(jax_platforms=platforms)
        monkeypatch.setattr(at_hand, "jax", types.SimpleNamespace(config=config))
        assert at_hand.device_at_hand().name == name


def test_the_error_stands_beside_a_prediction_that_was_measured():
    cost = planned(pt.Simulator("h100")).steps[-1].simulation
    assert cost.shown_seconds().endswith(" +-30%")
    large = planned(pt.Simulator("h100"), batch=2**16, width=4096, hidden=2**14)
    assert large.steps[-1].simulation.shown_seconds().endswith(" +-10%")
    assert "seconds +-10% (under 10 ms +-30%), by eight steps" in str(large)
    card = types.SimpleNamespace(
        platform="cuda", device_kind="NVIDIA H100 80GB HBM3", memory_stats=lambda: {}
    )
    assert error_of(pt.nearest(card, 1)).measured
    card.platform = card.device_kind = "cpu"
    assert not error_of(pt.nearest(card, 1)).measured  # Its rates are another device's.
    calibrated = dataclasses.replace(
        pt.nearest(card, 1), sources={"all": "measured by calibrate()"}
    )
    assert error_of(calibrated).of(1.0) > 0.3
    other = planned(pt.Simulator("mi300x"))
    assert "+-" not in other.steps[-1].simulation.shown_seconds()
    assert "none was measured on mi300x" in str(other)


def test_rows_within_the_error_are_marked():
    plan = planned(pt.Simulator("h100"))
    first, last = (step.simulation for step in plan.steps)
    error = error_of(DEVICES["h100-sxm"])
    times = first.predicted_seconds.total, last.predicted_seconds.total
    lines = [line for line in str(plan).splitlines() if line.startswith("zero")]
    assert ("~" in lines[0]) == error.alike(*times)
    assert error.alike(1.0, 1.09)
    assert not error.alike(1.0, 1.12)
    assert error.alike(0.001, 0.0013)
    assert not error.alike(0.001, 0.0015)


def test_runners_up_within_the_error_are_marked():
    example = models.make("mlp", batch=2**14, width=512, hidden=2048)

    def make(mesh, tactics):
        step = pt.partition(example.update, mesh, tactics, simulate=pt.Simulator("h100"))
        return step.plan(example.state_shapes, example.batch_shapes)

    found = pt.choose(make, 4)
    best = found.best.simulation.predicted_seconds.total
    rows = str(found).splitlines()[3:]
    error = error_of(DEVICES["h100-sxm"])
    marked = 0
    for tried in found.others[:7]:
        seconds = tried.simulation.predicted_seconds.total
        row = next((r for r in rows if r.split()[:2] == [tried.mesh, tried.schedule]), None)
        if row is not None:
            assert ("~" in row) == error.alike(seconds, best)
            marked += "~" in row
    assert marked
    assert "within the error of predictions" in str(found)


def test_both_ends_of_overlap_are_said():
    both = planned(pt.Simulator("h200")).steps[-1].simulation
    apart = planned(pt.Simulator("h200", overlap=False)).steps[-1].simulation
    assert both.predicted_seconds.total < both.predicted_seconds.apart
    assert both.predicted_seconds.apart == pytest.approx(apart.predicted_seconds.total)
    low, high = map(float, both.shown_seconds().split(" to "))
    assert low == pytest.approx(both.predicted_seconds.total, rel=1e-2)
    assert high == pytest.approx(apart.predicted_seconds.total, rel=1e-2)
    assert " to " not in apart.shown_seconds()
    assert both.to_json()["seconds_apart"] == both.predicted_seconds.apart
    json.dumps(both.to_json())


def test_what_a_compiler_makes_for_a_loop_is_named_by_the_users_code():
    def loss(ws, x):
        def layer(h, w):
            return jnp.tanh(h @ w), None

        return jax.lax.scan(layer, x, ws)[0].sum()

    def step(ws, x):
        gradients = jax.grad(loss)(ws, x)
        return ws - gradients / jnp.sum(gradients**2)

    ws, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64, 64), (512, 64)))
    found = memory_of(pt.trace(step, ws, x), kind="gpu").owners
    assert ("copy of x", "f32[512,64]") in [(owner.name, owner.type) for owner in found]
    grown = [o for o in found if o.kind == "temporary" and o.nbytes > 2**19]
    assert {owner.type for owner in grown} == {"f32[64,64,64]", "f32[64,512,64]"}
    for owner in grown:
        assert owner.name not in ("broadcast_in_dim", "scan")
        assert owner.source.startswith("test_report.py:")


def test_values_that_are_alike_are_named_together():
    def step(ws, x):
        return jax.grad(lambda ws: loss(ws, x).sum())(ws)

    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    ws = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6
    x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
    found = memory_of(pt.trace(step, ws, x)).owners
    kept = next(owner for owner in found if owner.type == "f32[512,64]" and owner.count > 1)
    assert kept.count >= 5  # What each layer keeps for its gradient.
    assert kept.nbytes == kept.count * 512 * 64 * 4
    assert {owner.count for owner in found if owner.kind == "argument"} == {1}  # By their paths.
    assert [owner.nbytes for owner in found] == sorted((o.nbytes for o in found), reverse=True)


def test_the_limit_is_in_the_picture_and_one_device_flattens_nothing():
    plan = planned(
        pt.Simulator(dataclasses.replace(get_device("h100"), memory_bytes=2**34)),
        "batch:data", pt.Mesh({"data": 256}), batch=2**18, width=4096, hidden=2**14,
    )  # fmt: skip
    figure = pictures.plan_figure(plan)
    memory, _, _, steps = (ax for part in figure.subfigs for ax in part.axes)
    limits = [line.get_ydata()[0] for line in memory.lines if "has" in str(line.get_label())]
    assert limits == [16.0]
    assert memory.get_ylim()[1] > 16.0
    assert steps.get_yscale() == "log"
    one, last = (p.get_height() for p in (steps.patches[0], steps.patches[1]))
    low, high = steps.get_ylim()
    assert low < min(one, last) <= max(one, last) < high
    assert "predicted for" in report(plan)
