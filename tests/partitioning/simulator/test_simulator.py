"""Time predictions, and predictions on plans."""

import dataclasses
import gc
import itertools
import json
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models
from troupe.partitioning.command import main
from troupe.partitioning.simulator.graph import ArrayNode
from troupe.partitioning.simulator.timing import Wires
from troupe.partitioning.simulator.topology import Level, Topology

BIG = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
DEVICE = pt.Device("test", "gpu", {"bfloat16": 1e12}, 1e11, 2**34, 1e10, 0.0)


def test_a_large_product_is_bound_by_arithmetic():
    found = pt.simulate(pt.trace(lambda x: x @ x, BIG), DEVICE)
    assert found.predicted_seconds.total == pytest.approx(2 * 4096**3 / 1e12)
    assert found.timing.by_kind == {"matmul": found.predicted_seconds.compute}


def test_a_chain_of_elementwise_ops_reads_and_writes_once():
    found = pt.simulate(pt.trace(lambda x: x * 2 + 1 - x, BIG), DEVICE)
    assert found.predicted_seconds.total == pytest.approx(2 * BIG.size * 2 / 1e10)


def test_times_alone_are_those_of_the_whole_simulation():
    """And what the simulator makes of a program goes with it, without a garbage collector."""
    example = models.make("transformer", num_layers=2, scan=True, width=16, batch=8, length=8)
    schedule = pt.parse_schedule("batch:data,megatron:model")
    step = pt.partition(example.update, pt.Mesh({"data": 2, "model": 2}), schedule)
    program = step.plan(example.state_shapes, example.batch_shapes).program

    def nodes():
        return sum(isinstance(thing, ArrayNode) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = nodes()
        for device in ("h100", "tpu-v5e"):
            simulator = pt.Simulator(device)
            whole = simulator.predict(program, step.mesh.axes, ("state",))
            assert simulator.predict_time(program, step.mesh.axes) == whole.timing
        assert nodes() == before
    finally:
        gc.enable()


def test_a_loop_takes_its_turns():
    def run(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0]

    found = pt.simulate(pt.trace(run, BIG), DEVICE)
    assert found.timing.by_kind["matmul"] == pytest.approx(5 * 2 * 4096**3 / 1e12)
    (loop,) = [e for e in found.timing.events if e.kind == "loop"]
    assert loop.seconds == pytest.approx(found.predicted_seconds.compute, rel=1e-3)


def _plan(schedule="batch:data,megatron:model,zero3:data", mesh="data=4,model=2", **kwargs):
    example = models.make(
        "transformer", num_layers=2, width=256, length=64, batch=64, optimizer="adam"
    )
    step = pt.partition(
        example.update,
        pt.parse_mesh(mesh),
        pt.parse_schedule(schedule),
        donate=("state",),
        **kwargs,
    )
    return step.plan(example.state_shapes, example.batch_shapes)


def test_every_step_of_a_plan_says_what_it_costs():
    plan = _plan()
    found = [step.simulation for step in plan.steps]
    for step in found:
        assert step.peak_memory_bytes == step.memory.peak
        assert step.flops > 0
        seconds = step.predicted_seconds
        assert seconds.total >= seconds.compute > 0
        assert seconds.communication >= seconds.exposed >= 0
        assert step.fits
    batch, both, sharded = found
    assert both.flops < 0.7 * batch.flops
    assert sharded.memory.arguments < 0.4 * both.memory.arguments
    data = json.loads(plan.to_json())["steps"][-1]["simulation"]
    assert data["fits"] is True
    assert data["peak_memory_bytes"] == sharded.peak_memory_bytes
    assert "peak (h200)" in str(plan)


def test_the_timeline_is_in_order_and_holds_the_collectives():
    plan = _plan(simulate=pt.Simulator("a100-80gb"))
    events = plan.timeline()
    kinds = {event.kind for event in events}
    assert {"matmul", "memory", "all_gather", "reduce_scatter"} <= kinds
    kernels = [e for e in events if e.kind in ("matmul", "memory")]
    for before, after in itertools.pairwise(kernels):
        assert after.start >= before.start + before.seconds - 1e-12


def test_overlap_hides_communication():
    exposed = {}
    for overlap in (True, False):
        exposed[overlap] = (
            _plan(simulate=pt.Simulator("h200", overlap=overlap))
            .steps[-1]
            .simulation.predicted_seconds.exposed
        )
    assert exposed[True] < exposed[False]


def test_wires_take_what_fits_between_and_levels_have_their_own():
    wires = Wires()
    assert wires.send(["near"], 5.0, 1.0) == 5.0
    assert wires.send(["near"], 0.0, 5.0) == 0.0
    assert wires.send(["near"], 0.0, 1.0) == 6.0
    assert wires.send(["far"], 0.0, 1.0) == 0.0
    assert wires.send(["near", "far"], 0.0, 1.0) == 7.0
    assert wires.free() == 8.0


def _gathered_in_a_loop(length, overlap, device=DEVICE):
    """Seconds of a loop that gathers the weights of each layer."""

    def run(ws, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]

    tactics = [pt.Manual("rows", {"x": 0}, "data"), pt.Manual("weights", {"ws": 1}, "data")]
    topology = pt.Topology((pt.Level("host", 4, 1e8, 0.0),))
    step = pt.partition(
        run, pt.Mesh({"data": 4}), tactics, simulate=pt.Simulator(device, topology, overlap)
    )
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((length, 512, 512), (65536, 512))]
    return step.plan(*shapes).steps[-1].simulation.predicted_seconds


def test_gathers_of_the_next_turn_run_during_this_one():
    one, eight = (_gathered_in_a_loop(length, True) for length in (1, 8))
    assert eight.communication == pytest.approx(8 * one.communication)
    assert eight.exposed == pytest.approx(one.exposed)
    apart = _gathered_in_a_loop(8, False)
    assert apart.exposed == pytest.approx(apart.communication)


def test_devices_meet_at_every_turn_of_a_loop():
    late = dataclasses.replace(DEVICE, skew=0.5, most_skew_seconds=1.0)
    even, skewed = (_gathered_in_a_loop(8, False, device) for device in (DEVICE, late))
    assert skewed.compute == even.compute
    waited = 1.0 + 7 * 0.5 * even.compute / 8  # They have never met before the first.
    assert skewed.communication == pytest.approx(even.communication + waited)


def test_slower_links_cost_more():
    seconds = []
    for bandwidth in (400e9, 4e9):
        topology = pt.Topology((pt.Level("host", 8, bandwidth, 1e-6),))
        seconds.append(
            _plan(simulate=pt.Simulator("h200", topology))
            .steps[-1]
            .simulation.predicted_seconds.total
        )
    assert seconds[1] > 1.5 * seconds[0]


def test_a_topology_that_does_not_hold_the_mesh_is_refused():
    simulator = pt.Simulator("h200", pt.Topology((pt.Level("host", 4, 1e9, 1e-6),)))
    with pytest.raises(ValueError, match="needs 8 devices and the topology"):
        _plan(simulate=simulator)
    # Before anything is searched, or even traced.
    with pytest.raises(ValueError, match="needs 8 devices and the topology"):
        pt.partition(None, pt.Mesh({"data": 8}), [pt.Automatic(("data",))], simulate=simulator)


def test_an_unknown_device_is_refused_before_planning():
    with pytest.raises(ValueError, match="unknown device"):
        pt.Simulator("h2000")


def test_forty_eight_layers_of_32_billion_parameters_are_simulated_in_little_memory():
    example = models.make(
        "transformer", num_layers=48, width=7424, length=2048, batch=64, vocabulary=32000,
        num_heads=58, scan=True, checkpoint="nothing", optimizer="adam",
    )  # fmt: skip
    assert sum(leaf.size for leaf in jax.tree.leaves(example.state_shapes["params"])) > 31e9
    mesh = pt.Mesh({"data": 16, "model": 8})
    step = pt.partition(
        example.update, mesh, pt.parse_schedule("batch:data,megatron:model,zero3:data")
    )
    tracemalloc.start()
    plan = step.plan(example.state_shapes, example.batch_shapes)
    cost = plan.steps[-1].simulation
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 2**30
    assert cost.memory.arguments == pytest.approx(12 * 32e9 / 128, rel=0.1)


# -- the command -----------------------------------------------------------------------------------

SMALL = ["--model", "transformer", "--layers", "1", "--width", "32", "--mesh", "data=4,model=2"]


def test_the_command_prints_and_draws(capsys, tmp_path):
    picture = tmp_path / "plan.png"
    schedule = ["--schedule", "batch:data,megatron:model", "--save", str(picture), "--profile"]
    assert main([*SMALL, *schedule]) == 0
    out = capsys.readouterr().out
    assert "megatron" in out
    assert "alive at the peak" in out
    assert picture.stat().st_size > 10_000


def test_the_command_prints_json(capsys):
    assert main([*SMALL, "--schedule", "batch:data", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["steps"][0]["simulation"]["predicted_seconds"]["total"] > 0


STEP = """
import jax, jax.numpy as jnp

traced = []

def step(state, batch):
    traced.append(None)
    grads = jax.grad(lambda w: jnp.mean((jnp.tanh(batch["x"] @ w["up"]) @ w["down"]) ** 2))(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), 0.0

def shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

step_arguments = {"up": shape(512, 4096), "down": shape(4096, 64)}, {"x": shape(4096, 512)}

def made():
    return step, *step_arguments

def lacking(state, batch):
    return state
"""


@pytest.mark.parametrize("name", ["step", "made"])
def test_the_command_chooses_for_a_step_of_the_users_own(name, tmp_path, monkeypatch, capsys):
    module = f"mine_{name}"
    (tmp_path / f"{module}.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    assert main([f"{module}:{name}", "--devices", "8", "--device", "h100"]) == 0
    assert len(sys.modules[module].traced) == 1  # For all plans, and to find the state.
    printed = capsys.readouterr().out
    assert "chosen of" in printed
    assert "runners-up" in printed
    assert "in donated arguments" in printed
    assert "0 B in donated" not in printed  # The state is known by its coming out again.
    least = ["--mesh", "data=8", "--schedule", "batch:data,zero3:data", "--json"]
    sizes = {}
    for memory in ("80GB", "8MB"):
        assert main([f"{module}:{name}", "--devices", "8", "--memory", memory, "--json"]) == 0
        last = json.loads(capsys.readouterr().out)["steps"][-1]["simulation"]
        sizes[memory] = last["peak_memory_bytes"]
        assert last["fits"] == (memory == "80GB")
    assert sizes["8MB"] <= sizes["80GB"]  # Nothing fits: what needs least is chosen.
    assert main([f"{module}:{name}", *least]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][-1]["collectives"]["reduce_scatter"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["mine:lacking"], "mine:lacking is no step with its arguments: let it be a function"),
        (["mine:none"], "mine:none cannot be had: AttributeError"),
        (["nowhere:step"], "nowhere:step cannot be had: ModuleNotFoundError"),
        (["mine:step", "--width", "8"], "mine:step takes no --width"),
        (["mine:step", "--devices", "8", "--mesh", "data=8"], "give it without them"),
        (["mine:step", "--devices", "0"], "0"),
        (["mine:step", "--memory", "lots"], "--memory is a share such as 0.9, or 40GB"),
        (["--device", "h20"], "unknown device 'h20'"),
        (["--model", "transfomer"], "no example 'transfomer'"),
        (["--layer", "2"], "no field '--layer'"),
        (["--width", "wide"], "--width is of type int, not 'wide'"),
        (["--hosts-of", "3"], "does not fill hosts of 3"),
        (["--schedule", "batch:rows"], "rows"),
    ],
)
def test_wrong_choices_get_one_line(capsys, tmp_path, monkeypatch, flags, message):
    (tmp_path / "mine.py").write_text(STEP)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_does_not_fit_is_told_with_a_remedy(capsys):
    flags = [
        "--model",
        "transformer",
        "--layers",
        "16",
        "--width",
        "8192",
        "--heads",
        "64",
        "--scan",
    ]
    flags += ["--batch", "8", "--length", "512", "--optimizer", "adam", "--checkpoint", "nothing"]
    flags += ["--mesh", "data=8", "--device", "a100-80gb", "--schedule", "batch:data"]
    assert main(flags) == 0
    error = capsys.readouterr().err
    assert "do not fit a100-80gb" in error
    assert "zero" in error
    assert error.count("\n") == 1


def test_sums_that_become_one_cost_what_all_of_them_send():
    """Newer compilers combine the sums of gradients on CPUs."""
    bandwidth = 1e6
    link = Topology((Level("link", 2, bandwidth, 0.0),))
    device = pt.Device("cores", "cpu", {"float32": 1e12}, 1e12, 2**34, 1e12, 0.0)
    example = models.make("mlp", num_layers=2, width=64, hidden=128, batch=16)
    step = pt.partition(
        example.update, pt.Mesh({"data": 2}), pt.parse_schedule("batch:data"),
        simulate=pt.Simulator(device, link),
    )  # fmt: skip
    plan = step.plan(example.state_shapes, example.batch_shapes)
    summed = [op for op in plan.program.walk() if op.name == "all_reduce"]
    assert len(summed) > 2
    nbytes = sum(value.nbytes for op in summed for value in op.inputs)
    found = plan.steps[-1].simulation.predicted_seconds.communication
    assert found == pytest.approx(nbytes / bandwidth, rel=0.05)
