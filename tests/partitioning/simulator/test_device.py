"""Devices: presets with sources, curves, JSON, and errors that help."""

import dataclasses
import json

import pytest

from troupe import partitioning as pt
from troupe.partitioning import models
from troupe.partitioning.printing import report
from troupe.partitioning.simulator.device import Curve, Device
from troupe.partitioning.simulator.presets import DEVICES, default_topology, get_device, told_by


@pytest.mark.parametrize("name", DEVICES)
def test_presets_cite_their_figures(name):
    device = DEVICES[name]
    for field in ("matmul_flops", "vector_flops", "memory_bytes", "memory_bandwidth"):
        assert device.sources[field]
    assert device.matmul_flops["bfloat16"] >= device.matmul_flops["float32"]


def test_h200_is_an_h100_with_more_and_faster_memory():
    h100, h200 = DEVICES["h100-sxm"], DEVICES["h200"]
    assert h200.matmul_flops == h100.matmul_flops
    assert h200.memory_bytes == 141 * 10**9
    assert h200.memory_bandwidth / h100.memory_bandwidth == pytest.approx(4.8 / 3.35)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4", "a100-40gb"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("cpu", None),
    ],
)
def test_a_device_and_its_links_are_told_by_its_own_name(kind, name):
    assert told_by(kind) == name
    expected = default_topology(kind if name is None else name, 16)
    assert default_topology(kind, 16) == expected
    assert (expected.levels[0].source == "assumed") == (name is None)


def test_names_are_found_by_alias_and_in_any_case():
    assert get_device("H100").name == "h100-sxm"
    assert get_device("tpu_v4") == DEVICES["tpu-v4"]
    assert get_device(DEVICES["h200"]) is DEVICES["h200"]


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ({}, 0.75),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}, 0.9),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, 1.0),
    ],
)
def test_a_gpu_has_the_memory_that_jax_hands_out(variables, share, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    device = get_device("h100")
    assert device.memory_bytes == int(share * 80 * 10**9)
    assert dataclasses.replace(device, memory_bytes=80 * 10**9) == DEVICES["h100-sxm"]
    assert get_device("tpu-v4") == DEVICES["tpu-v4"]
    example = models.make("mlp")
    plan = pt.partition(example.update, pt.Mesh({"data": 2}), [], simulate=pt.Simulator("h100"))
    said = report(plan.plan(example.state_shapes, example.batch_shapes))
    assert (f"as XLA_PYTHON_CLIENT_MEM_FRACTION is {share}" in said) == (share < 1)
    assert "h100-sxm with" in said


def test_a_share_of_memory_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "much")
    with pytest.raises(ValueError, match="XLA_PYTHON_CLIENT_MEM_FRACTION is 'much'"):
        get_device("h100")


def test_unknown_device_lists_what_there_is():
    with pytest.raises(ValueError, match=r"unknown device 'h20'.*did you mean 'h200'.*a100-80gb"):
        get_device("h20")


def test_a_curve_is_linear_in_the_logarithm_and_flat_outside():
    curve = Curve((10.0, 1000.0), (0.2, 0.6))
    assert curve.at(1) == 0.2
    assert curve.at(100) == pytest.approx(0.4)
    assert curve.at(1e9) == 0.6


@pytest.mark.parametrize(
    ("sizes", "values", "message"),
    [((1.0, 1.0), (1.0, 1.0), "increase"), ((), (), "at least one"), ((1.0,), (0.0,), "positive")],
)
def test_curves_that_make_no_sense_are_refused(sizes, values, message):
    with pytest.raises(ValueError, match=message):
        Curve(sizes, values)


def test_devices_survive_json(tmp_path):
    device = Device(
        "mine", "cpu", {"float32": 1e9}, 1e9, 2**30, 1e10, 1e-6,
        efficiency={"matmul": {"float32": Curve((1.0, 10.0), (0.5, 1.0))}},
        transposed_seconds=Curve((16.0, 64.0), (1e-9, 2e-9)),
    )  # fmt: skip
    path = tmp_path / "mine.json"
    device.save(path)
    assert get_device(str(path)) == device
    assert json.loads(path.read_text())["name"] == "mine"


def test_rates_fall_back_to_float32():
    device = DEVICES["a100-80gb"]
    assert device.matmul_rate("int32", 1e9) == device.matmul_rate("float32", 1e9)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: text.index("kind") + 2], "Unterminated"),
        (lambda text: "", "Expecting value"),
        (lambda text: "[1]", "holds a list"),
        (lambda text: "{}", "required positional argument"),
        (lambda text: text.replace('"kind": "cpu"', '"kind": "abacus"'), "use cpu, gpu or tpu"),
        (lambda text: text.replace('"memory_bytes"', '"memory"'), "unexpected keyword"),
        (lambda text: text.replace('"sizes"', '"size"'), "no field 'sizes'"),
        (lambda text: text.replace('"float32": 1000000000.0', '"float32": "fast"'), "str"),
        (lambda text: text.replace('"vector_flops": 1000000000.0', '"vector_flops": null'), "None"),
        (lambda text: text.replace("{", "\udcff", 1), "decode"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
    path = tmp_path / "mine.json"
    Device("mine", "cpu", {"float32": 1e9}, 1e9, 2**30, 1e10, 1e-6).save(path)
    path.write_text(damage(path.read_text()), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=r"mine\.json is no device that can be read") as error:
        get_device(str(path))
    assert message in str(error.value)
    assert "calibrate().save()" in str(error.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"gone\.json is no device.*No such file"):
        get_device("gone.json")
