"""Devices that people have, by what their vendors publish, and the machines that are made of them.

Rates are dense, without sparsity. The shares of them that a GPU's kernels reach, and what kernels
and calls cost besides, were measured on one H100 (docs/simulator.md) and are assumed of the others;
TPUs reach all. Latencies of links are assumed orders of magnitude. `calibrate` measures a machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from typing import NamedTuple

from .device import Curve, Device
from .topology import Level, Topology

_TF32 = "float32 as TF32, jax's default precision"
_ONE_PASS = "float32 in one bfloat16 pass, jax's default precision"
_VECTOR = "assumed: vendors publish no vector rate; elementwise kernels are bound by memory anyway"
_OVERHEAD = "assumed order of magnitude; calibrate() measures it"
_SHARES = ("efficiency", "memory_efficiency", "kernel_seconds", "result_seconds")
_ASSUMED = ("step_seconds", "loop_seconds", "branch_seconds")
#: By dtype the share of the peak that products of so many FLOPs reach, by the profiles of three
#: transformers: of 8,192 tokens, to and from 1,024 features, 4,096 of an MLP and 32,768 words.
_PRODUCTS = {
    "bfloat16": Curve((1.7e10, 6.9e10, 5.5e11), (0.71, 0.72, 0.84)),
    "float32": Curve((1.7e10, 3.4e10, 6.9e10, 5.5e11), (0.45, 0.7, 0.8, 0.87)),
}
#: Share of the bandwidth, by the same: 2.8 to 3.2 TB/s where a kernel moves 64 MB and more.
_STREAMS = Curve(values=(0.91,))
_MEASURED = "h100-sxm"

#: Name to (TFLOP/s of products in bfloat16, float32, float64, int8; TFLOP/s of vectors in float32;
#: GB of memory; GB/s; source). A name that another one holds stands behind it.
GPUS = {
    "a100-40gb": (312, 156, 19.5, 624, 19.5, 40, 1555, "NVIDIA A100 datasheet (SXM)"),
    "a100-80gb": (312, 156, 19.5, 624, 19.5, 80, 2039, "NVIDIA A100 datasheet (SXM)"),
    "h100-sxm": (989, 494, 67, 1979, 67, 80, 3350, "NVIDIA H100 datasheet (SXM)"),
    "h200": (989, 494, 67, 1979, 67, 141, 4800, "NVIDIA H200 datasheet (SXM)"),
    "gb200": (2500, 1250, 45, 5000, 90, 186, 8000, "NVIDIA Blackwell technical brief (GB200)"),
    "b200": (2250, 1100, 40, 4500, 80, 180, 8000, "NVIDIA Blackwell technical brief (HGX B200)"),
    "l40s": (362, 183, 1.43, 733, 91.6, 48, 864, "NVIDIA L40S datasheet"),
    "a10": (125, 62.5, 0.98, 250, 31.2, 24, 600, "NVIDIA A10 datasheet"),
    "rtx-4090": (165.2, 82.6, 1.29, 660.6, 82.6, 24, 1008, "NVIDIA Ada architecture whitepaper"),
    "mi300x": (1307.4, 163.4, 163.4, 2614.9, 163.4, 192, 5300, "AMD Instinct MI300X data sheet"),
}
#: Name to (TFLOP/s of products in bfloat16 and float32, int8; TFLOP/s of vectors; GB; GB/s;
#: source).
TPUS = {
    "tpu-v4": (275, 275, 4.3, 34.36, 1228, "Jouppi et al. 2023, arXiv 2304.01433, table 4"),
    "tpu-v5e": (197, 393, 3.1, 16, 819, "Google Cloud documentation, page 'TPU v5e'"),
    "tpu-v5p": (459, 918, 7.2, 95, 2765, "Google Cloud documentation, page 'TPU v5p'"),
    "tpu-v6e": (918, 1836, 6.2, 32, 1640, "Google Cloud documentation, page 'TPU v6e'"),
}


def _gpu(name: str) -> Device:
    *rates, vector, memory, bandwidth, source = GPUS[name]
    shares = "measured on an H100" if name == _MEASURED else "assumed: as the H100's"
    dtypes = ("bfloat16", "float32", "float64", "int8")
    matmul = {dtype: 1e12 * rate for dtype, rate in zip(dtypes, rates, strict=True)}
    return Device(
        name, "gpu", {**matmul, "float16": matmul["bfloat16"]}, 1e12 * vector,
        round(memory * 10**9), 1e9 * bandwidth, kernel_seconds=2.3e-6, step_seconds=3e-5,
        result_seconds=6e-6, loop_seconds=1e-5, branch_seconds=2e-5,
        efficiency={"matmul": {**_PRODUCTS, "float16": _PRODUCTS["bfloat16"]}},
        memory_efficiency=_STREAMS,
        sources={
            "matmul_flops": source if name == "mi300x" else f"{source}; {_TF32}",
            **dict.fromkeys(_SHARES, shares),
            **dict.fromkeys(_ASSUMED, _OVERHEAD),
            **dict.fromkeys(("vector_flops", "memory_bytes", "memory_bandwidth"), source),
        },
    )  # fmt: skip


def _tpu(name: str) -> Device:
    matmul, int8, vector, memory, bandwidth, source = TPUS[name]
    rates = {"bfloat16": 1e12 * matmul, "float32": 1e12 * matmul, "int8": 1e12 * int8}
    return Device(
        name, "tpu", rates, 1e12 * vector, round(memory * 10**9), 1e9 * bandwidth,
        kernel_seconds=1e-6, step_seconds=5e-5, loop_seconds=1e-6,
        sources={
            "matmul_flops": f"{source}; {_ONE_PASS}",
            "vector_flops": _VECTOR,
            "kernel_seconds": _OVERHEAD,
            **dict.fromkeys(("memory_bytes", "memory_bandwidth"), source),
        },
    )  # fmt: skip


DEVICES: dict[str, Device] = {
    **{name: _tpu(name) for name in TPUS},
    **{name: _gpu(name) for name in GPUS},
}
"""The presets by name."""

_ALIASES = {
    "a100": "a100-80gb",
    "h100": "h100-sxm",
    "4090": "rtx-4090",
    **{name.removeprefix("tpu-"): name for name in TPUS},
}


def get_device(device: str | Device) -> Device:
    """A device from its name, from the path of a saved calibration, or itself.

    By name it has the memory that jax hands out, of a GPU three quarters unless told otherwise.

    Raises:
      ValueError: the name is no preset, or the JSON file is not there or damaged.
    """
    if isinstance(device, Device):
        return device
    name = device.lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    if name in DEVICES:
        preset, share = DEVICES[name], handed_out(name)
        if share == 1.0:
            return preset
        return dataclasses.replace(
            preset,
            memory_bytes=int(share * preset.memory_bytes),
            limit=f"as XLA_PYTHON_CLIENT_MEM_FRACTION is {share:g}",
        )
    if device.endswith(".json"):
        return Device.load(device)
    near = difflib.get_close_matches(name, list(DEVICES), n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"unknown device {device!r}{hint}; known: {', '.join(DEVICES)}, or the path of a JSON file "
        "written by calibrate().save()"
    )


def handed_out(name: str) -> float:
    """The share of a preset's memory that jax hands out, by the environment.

    Raises:
      ValueError: XLA_PYTHON_CLIENT_MEM_FRACTION is no share.
    """
    whole = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default") in ("platform", "cuda_async")
    if DEVICES[name].kind != "gpu" or whole:
        return 1.0
    for variable in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        text = os.environ.get(variable)
        if text is None:
            continue
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not 0.0 < share <= 1.0:
            raise ValueError(f"{variable} is {text!r}; it must be a share such as 0.9")
        return share
    return 0.75


def told_by(kind: str) -> str | None:
    """The preset that a device's own name tells ("NVIDIA A100-SXM4-40GB"); None: none is told."""
    told = kind.lower().replace("v5 lite", "v5e").replace("v6 lite", "v6e")
    # "a10" is in "A10G", and not in "A100".
    said = {n: [re.search(rf"{word}(?!\d)", told) for word in n.split("-")] for n in DEVICES}
    whole = [name for name, found in said.items() if all(found)]
    first = [name for name, found in said.items() if found[0]]
    return next(iter(whole + first), None)


class _Links(NamedTuple):
    """The links of a machine: devices in a host, bytes/s and latency inside, between hosts."""

    host: int
    within: float
    near: float
    between: float
    far: float
    source: str


def _nvlink(gbytes: float, network: float, source: str) -> _Links:
    return _Links(8, gbytes * 1e9, 3e-6, network * 1e9, 1e-5, source)


_PCIE = _Links(8, 32e9, 1e-5, 12.5e9, 1e-5, "PCIe 4.0 x16, 32 GB/s each way (datasheet)")
_LINKS = {
    "a100-40gb": _nvlink(300, 25, "NVLink 3, 600 GB/s both ways (A100 datasheet)"),
    "a100-80gb": _nvlink(300, 25, "NVLink 3, 600 GB/s both ways (A100 datasheet)"),
    "h100-sxm": _nvlink(450, 50, "NVLink 4, 900 GB/s both ways (H100 datasheet)"),
    "h200": _nvlink(450, 50, "NVLink 4, 900 GB/s both ways (H200 datasheet)"),
    "gb200": _nvlink(900, 50, "NVLink 5, 1800 GB/s both ways (Blackwell brief)")._replace(host=72),
    "b200": _nvlink(900, 50, "NVLink 5, 1800 GB/s both ways (Blackwell brief)"),
    "l40s": _PCIE,
    "a10": _PCIE,
    "rtx-4090": _PCIE,
    "mi300x": _nvlink(448, 50, "Infinity Fabric, 7 links of 64 GB/s each way (MI300X data sheet)"),
    "tpu-v4": _Links(
        4096, 100e9, 1e-6, 6.25e9, 5e-5, "3-D torus, 6 links of 50 GB/s each way (2304.01433)"
    ),
    "tpu-v5e": _Links(
        256, 100e9, 1e-6, 6.25e9, 5e-5, "2-D torus, 1600 Gbit/s a chip (Cloud TPU v5e)"
    ),
    "tpu-v5p": _Links(
        8960, 200e9, 1e-6, 6.25e9, 5e-5, "3-D torus, 4800 Gbit/s a chip (Cloud TPU v5p)"
    ),
    "tpu-v6e": _Links(
        256, 224e9, 1e-6, 12.5e9, 5e-5, "2-D torus, 3584 Gbit/s a chip (Cloud TPU v6e)"
    ),
}


def default_topology(device_name: str, num_devices: int) -> Topology:
    """The usual machine made of this device, as large as needed.

    GPUs: hosts of eight, joined by one network card per GPU; GB200: racks of 72. TPUs: one torus,
    on which a ring along one mesh axis uses the two links of one dimension; pods joined by the data
    centre's network. Latencies are assumed orders of magnitude.
    """
    host = _links(device_name, num_devices).host
    inner = max(math.gcd(num_devices, host) if num_devices > host else num_devices, 1)
    return hosts_topology(device_name, inner, max(num_devices // inner, 1))


def whole_hosts(device_name: str, num_devices: int) -> Topology:
    """As few of the device's usual hosts as hold so many devices, each of them whole."""
    host = _links(device_name, num_devices).host
    return hosts_topology(device_name, min(host, num_devices), -(-num_devices // host))


def hosts_topology(device_name: str, inside: int, hosts: int) -> Topology:
    """So many hosts with so many devices each, with the links that the device usually has."""
    links = _links(device_name, inside)
    levels = [Level("host", inside, links.within, links.near, source=links.source)]
    if hosts > 1:
        card = "assumed: one network card a device"
        levels.append(Level("network", hosts, links.between, links.far, source=card))
    return Topology(tuple(levels))


def _links(device_name: str, num_devices: int) -> _Links:
    """Those of a preset, or of the one that a device's own name tells."""
    name = told_by(device_name)
    assumed = _Links(max(num_devices, 1), 10e9, 1e-5, 1e9, 1e-4, "assumed")
    return assumed if name is None else _LINKS[name]
