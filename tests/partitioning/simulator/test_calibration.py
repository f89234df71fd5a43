"""Calibration: the fits from made-up samples, and one real measurement."""

import jax
import pytest

from troupe import partitioning as pt
from troupe.partitioning.simulator import calibration
from troupe.partitioning.simulator.calibration import Calibration, calibrate
from troupe.partitioning.simulator.collectives import KINDS, collective_cost
from troupe.partitioning.simulator.device import Device
from troupe.partitioning.simulator.fit import fit_device, fit_topology
from troupe.partitioning.simulator.microbench import Measurement
from troupe.partitioning.simulator.presets import get_device
from troupe.partitioning.simulator.simulate import topology_of
from troupe.partitioning.simulator.timing import Work, work_seconds
from troupe.partitioning.simulator.topology import Segment


def _samples(overhead=1e-6, bandwidth=1e10, rate=1e12):
    found = [
        Measurement("step", "float32", (1,), 0, 4, 1e-4),
        Measurement("loop", "float32", (1,), 0, 0, 2e-6),
        Measurement("vector", "float32", (1,), 1e6, 0, overhead + 1e-5),
        Measurement("transcendental", "float32", (1,), 1e5, 0, overhead + 1e-5),
    ]
    for size in (64, 1e4, 1e6, 1e8):
        seconds = overhead + (0 if size == 64 else size / bandwidth)
        found.append(Measurement("memory", "float32", (int(size),), 0, size, seconds))
    for n in (8, 128, 1024):
        flops = 2.0 * n**3
        for kind in ("matmul", "convolution"):
            found.append(Measurement(kind, "float32", (n, n, n), flops, 0, overhead + flops / rate))
    return found


def test_the_fit_gives_back_what_the_samples_were_made_from():
    device = fit_device("made-up", "cpu", _samples(), 2**30)
    assert device.kernel_seconds == pytest.approx(1e-6)
    assert device.memory_bandwidth == pytest.approx(1e10, rel=1e-3)
    assert device.matmul_flops["float32"] == pytest.approx(1e12, rel=1e-3)
    assert device.vector_flops == pytest.approx(1e11, rel=1e-3)
    assert device.transcendental_flops == pytest.approx(10, rel=1e-3)
    work = Work("matmul", "float32", 2.0 * 512**3, 0, 0, 0)
    assert work_seconds(work, device) == pytest.approx(1e-6 + 2 * 512**3 / 1e12, rel=0.02)


def test_convolutions_in_groups_have_a_rate_of_their_own():
    flops, tenth = 2.0 * 512**3, 1e11
    samples = _samples()
    samples += [
        Measurement(
            "grouped_convolution", "float32", (n,), 2.0 * n**3, 0, 1e-6 + 2.0 * n**3 / tenth
        )
        for n in (8, 128, 1024)
    ]
    device = fit_device("made-up", "cpu", samples, 2**30)
    seconds = {
        kind: work_seconds(Work(kind, "float32", flops, 0, 0, 0), device)
        for kind in ("convolution", "grouped_convolution")
    }
    assert seconds["grouped_convolution"] == pytest.approx(10 * seconds["convolution"], rel=0.05)
    assert Device.from_json(device.to_json()) == device


ALPHA, BETA, COUNT = 1e-5, 1e9, 8


def _collectives():
    return [
        Measurement(
            "all_reduce", "float32", (COUNT,), 0, size, 14 * ALPHA + 2 * 7 / 8 * size / BETA
        )
        for size in (1e3, 1e5, 1e7)
    ] + [
        Measurement("all_gather", "float32", (group,), 0, size, group * (ALPHA + size / BETA))
        for size in (1e3, 1e5, 1e7)
        for group in (2, 4, 8)
    ]


def test_links_are_fitted_on_relative_errors():
    (level,) = fit_topology(_collectives(), COUNT).levels
    assert level.latency == pytest.approx(ALPHA, rel=1e-3)
    assert level.bandwidth == pytest.approx(BETA, rel=1e-3)


def test_a_collective_that_was_measured_costs_what_was_measured():
    (level,) = fit_topology(_collectives(), COUNT).levels

    def seconds(kind, nbytes, group):
        return collective_cost(kind, nbytes, [Segment(level, group)])

    for group in (2, 4, 8):
        found = seconds("all_gather", 1e5, group)
        assert found.algorithm == "measured"
        assert found.seconds == pytest.approx(group * (ALPHA + 1e5 / BETA))
    least, most = seconds("all_gather", 1e3, 4).seconds, seconds("all_gather", 1e7, 4).seconds
    assert seconds("all_gather", 1.0, 4).seconds == pytest.approx(least)
    assert seconds("all_gather", 4e7, 4).seconds == pytest.approx(4 * most)
    between = seconds("all_gather", 1e4, 4).seconds
    assert least < between < seconds("all_gather", 1e5, 4).seconds
    # What was not measured follows from latency and bandwidth.
    assert seconds("all_reduce", 1e5, 2).algorithm != "measured"
    assert seconds("all_to_all", 1e5, 8).algorithm != "measured"


def test_waits_grow_with_work_up_to_some_and_one_busy_moment_is_no_matter():
    work = (1e-5, 4e-5, 1e-4, 4e-4, 1e-3, 4e-3, 1e-2)
    bare, skew, most = 3e-5, 2.0, 2.5e-4
    samples = _samples()
    for count, nbytes, seconds in ((2, 4096, bare / 5), (8, 4096, bare), (8, 1e6, 9 * bare)):
        samples.append(Measurement("all_reduce", "float32", (count,), 0, nbytes, seconds))
    for at, alone in enumerate(work):
        wait = 5 * most if at == 5 else min(skew * alone, most)
        samples.append(Measurement("apart", "float32", (128, at), 0, 0, alone))
        samples.append(Measurement("together", "float32", (128, at), 0, 0, alone + bare + wait))
    device = fit_device("made-up", "cpu", samples, 2**30)
    assert device.skew == pytest.approx(skew)
    assert device.most_skew_seconds == pytest.approx(most)
    assert fit_device("made-up", "cpu", _samples(), 2**30).skew == 0


def test_every_array_returned_costs_the_same():
    samples = _samples() + [
        Measurement("results", "float32", (count,), 0, 0, 1e-5 * count) for count in (1, 64)
    ]
    device = fit_device("made-up", "cpu", samples, 2**30)
    assert device.result_seconds == pytest.approx(1e-5)
    program = pt.trace(lambda xs: [x + 1 for x in xs], [jax.ShapeDtypeStruct((2,), "float32")] * 11)
    overhead = pt.simulate(program, device).predicted_seconds.overhead
    assert overhead == pytest.approx(1e-4 + 10 * 1e-5)


@pytest.mark.long
def test_this_machine_is_measured_and_kept(tmp_path, monkeypatch):
    """Collectives once instead of thrice, and some of the sizes."""
    monkeypatch.setattr(calibration, "_ROUNDS", 1)
    for name in "_TURNS", "_CONVOLUTIONS_SMALL":
        monkeypatch.setattr(calibration, name, getattr(calibration, name)[::3])
    found = calibrate(jax.devices()[:2], repeats=1)
    assert isinstance(found, Calibration)
    assert found.device.kind == "cpu"
    assert {s.kind for s in found.samples} >= {"matmul", "convolution", "memory", "results", *KINDS}
    assert all(s.seconds > 0 for s in found.samples)
    path = tmp_path / "here.json"
    found.save(path)
    assert get_device(str(path)) == found.device
    assert Calibration.load(path) == found
    assert topology_of(str(path), 2) == found.topology
    assert topology_of(found.device, 2) != found.topology
