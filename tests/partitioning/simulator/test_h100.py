"""Predictions of the preset beside what steps took on one H100.

`h100.json` holds our own measurements: milliseconds a step, and GiB by the allocator's high-water
mark (of learners as far as two digits tell). How the learners' steps are made has changed little
since: their gradients' norm was a product with ones then.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.agents.examples import make
from troupe.partitioning.simulator.presets import DEVICES

RECORDS = json.loads((pathlib.Path(__file__).parent / "h100.json").read_text())["steps"]
#: Steps of under 10 ms are small: what their kernels cost to launch counts.
SMALL_MS = 10.0


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_the_preset_predicts_what_was_measured(record):
    example = make(record["model"], **record["sizes"])
    program = pt.trace(
        lambda state, batch: example.update(state, batch),
        example.state_shapes,
        example.batch_shapes,
    )
    found = pt.simulate(program, DEVICES["h100-sxm"], donated=("state",))
    measured = record["milliseconds"]
    bound = 0.3 if measured < SMALL_MS else 0.1
    assert 1e3 * found.predicted_seconds.total == pytest.approx(measured, rel=bound)
    if "GiB" in record:
        peak = found.peak_memory_bytes / 2**30
        assert peak == pytest.approx(record["GiB"], rel=0.1)
    if "compiled_GiB" in record:
        assert peak == pytest.approx(record["compiled_GiB"], rel=0.1)


SMALL = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def seconds(step):
    program = pt.trace(step, SMALL)
    return pt.simulate(program, DEVICES["h100-sxm"]).predicted_seconds


def test_a_host_that_reads_a_value_is_not_ahead():
    """It makes the arrays of the results only then, and the device is idle meanwhile."""

    def results(x):
        return [x + i for i in range(100)]

    device = DEVICES["h100-sxm"]
    plain = seconds(lambda x: [x @ x, *results(x)])
    chosen = seconds(lambda x: [jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x), *results(x)])
    assert plain.overhead == device.step_seconds
    assert chosen.overhead == device.step_seconds + 100 * device.result_seconds
    assert chosen.compute >= plain.compute + device.branch_seconds


def test_a_gpu_computes_cheap_functions_anew_and_a_cpu_keeps_them():
    """exp of what was bfloat16 is read from there by each of its readers."""

    def step(x):
        e = jnp.exp((x @ x).astype(jnp.float32))
        return e / jnp.sum(e, axis=-1, keepdims=True), jnp.sum(e * x, axis=0)

    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    program = pt.trace(step, shape)
    held = {
        kind: pt.simulate(program, device).memory.temporaries
        for kind, device in (("gpu", DEVICES["h100-sxm"]), ("cpu", CPU))
    }
    assert held["gpu"] < 3 * 2**20 + (32 << 20)
    assert held["cpu"] >= 4 * 2**20


def test_a_gpu_holds_zeros_of_a_loop_for_who_multiplies_by_zero_later():
    """A weight decay of 0 is multiplied by, and needs the zeros that the loop fills with gradients
    as they were: there are two arrays of them, where a product by another number needs none.
    """

    def step(decay, w, x):
        def loss(w):
            return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0].sum()

        return w - (jax.grad(loss)(w) + decay * w)

    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 512, 512), (64, 512)))

    def held(decay, device):
        program = pt.trace(lambda w, x: step(decay, w, x), w, x)
        return pt.simulate(program, device).memory.temporaries

    nbytes = 4 * 8 * 512 * 512
    assert held(0.0, DEVICES["h100-sxm"]) - held(1e-3, DEVICES["h100-sxm"]) == nbytes
    assert held(0.0, CPU) == held(1e-3, CPU)


CPU = pt.Device("test", "cpu", {"float32": 1e12}, 1e11, 2**34, 1e10, 0.0)
