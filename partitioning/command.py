"""Prints the cost of a schedule of a model, without a device: `python -m troupe.partitioning`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from . import models
from .decide.actions import Tactic
from .mesh import Mesh, parse_mesh
from .partition import partition
from .placement.place import laid_out
from .plan import Plan
from .printing import report
from .rematerialization.recompute import Recompute
from .simulator.attach import Simulator
from .simulator.device import Device
from .simulator.pictures import save_plan
from .simulator.presets import DEVICES, get_device, hosts_topology
from .simulator.profile import profile
from .simulator.simulate import Simulation, amount, topology_of
from .simulator.topology import Topology
from .tactics import parse_schedule, parse_spread

#: Schedules tried, in this order, when the one asked for does not fit; the axes are filled in.
_REMEDIES = (
    "batch:{0},zero2:{0}",
    "batch:{0},zero3:{0}",
    "batch:{0},megatron:{1},zero2:{0}",
    "batch:{0},megatron:{1},zero3:{0}",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Plans, simulates and prints. Returns 0, or 2 after one line that says what was wrong."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2


def run(argv: Sequence[str]) -> int:
    """Like `main`, but raises ValueError for a wrong choice."""
    parser = argparse.ArgumentParser(
        prog="python -m troupe.partitioning",
        description=__doc__,
        epilog="Any field of the model's config is a flag as well, e.g. --layers 32 --width 4096 "
        f"--batch 64 --dtype bfloat16. Models: {', '.join(models.CATALOGUE)}. "
        f"Devices: {', '.join(DEVICES)}, or a file written by calibrate().save().",
    )
    parser.add_argument("--model", default="transformer", help="one of the example models")
    parser.add_argument("--mesh", default="data=8", help="e.g. data=16,model=2")
    parser.add_argument("--schedule", default="", help="e.g. batch:data,megatron:model,zero3:data")
    parser.add_argument("--device", default="h200", help="a preset, or the path of a calibration")
    parser.add_argument("--hosts-of", type=int, default=0, metavar="N", help="devices in one host")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--profile", action="store_true", help="also print FLOPs by module")
    parser.add_argument(
        "--recompute", choices=("auto",), help="compute activations again to keep to --memory"
    )
    parser.add_argument(
        "--memory", type=float, metavar="SHARE", help="of the device's that a step may need"
    )
    parser.add_argument(
        "--placement",
        choices=("auto",),
        help="lay axes and sums onto the hierarchy of links as is quickest",
    )
    parser.add_argument("--no-overlap", action="store_true", help="collectives wait for kernels")
    parser.add_argument("--save", metavar="FILE.png", help="draw memory, time and tactics")
    args, rest = parser.parse_known_args(list(argv))
    device = get_device(args.device)
    example = models.make(args.model, **_sizes(args.model, rest))
    mesh = parse_mesh(args.mesh)
    topology = topology_of(args.device, mesh.size)
    if args.hosts_of > 0:
        topology = _hosts_of(args.hosts_of, device.name, mesh.size)
    topology.place(mesh.axes)
    tactics, recompute = parse_spread(args.schedule, args.recompute, args.memory)
    plan = _plan(
        example, mesh, tactics, device, topology, not args.no_overlap, recompute, args.placement
    )
    last = plan.steps[-1].simulation
    if args.json:
        print(plan.to_json())
    else:
        print(report(plan))
    if args.profile and not args.json:
        print(profile(plan.graph.program))
    if args.save:
        save_plan(plan, args.save)
    if not last.fits and not args.json:
        print(_remedy(example, mesh, args.schedule, device, topology, last), file=sys.stderr)
    return 0


def _plan(
    example: models.Example,
    mesh: Mesh,
    schedule: Sequence[Tactic],
    device: Device,
    topology: Topology,
    overlap: bool,
    recompute: Recompute | None = None,
    placement: str | None = None,
) -> Plan:
    simulator = Simulator(device, topology, overlap and device.kind != "cpu")
    step = partition(
        example.update,
        mesh,
        schedule,
        donate=("state",),
        simulate=simulator,
        recompute=recompute,
        **laid_out(placement),
    )
    return step.plan(example.state_shapes, example.batch_shapes)


def _sizes(model: str, rest: Sequence[str]) -> dict[str, Any]:
    """The config fields among the flags, by the type of their default."""
    config = models.make(model).config
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    sizes: dict[str, Any] = {}
    flags = list(rest)
    while flags:
        flag = flags.pop(0)
        name, equals, text = flag.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        name = f"num_{name}" if f"num_{name}" in fields and name not in fields else name
        if not flag.startswith("--") or name not in fields:
            raise ValueError(
                f"{model} has no field {flag!r}; its fields are {', '.join(sorted(fields))}"
            )
        default = fields[name]
        if isinstance(default, bool) and not equals and (not flags or flags[0].startswith("--")):
            sizes[name] = True
            continue
        if not equals:
            if not flags:
                raise ValueError(f"--{name} needs a value, e.g. --{name} {default}")
            text = flags.pop(0)
        sizes[name] = _value(name, text, default)
    return sizes


def _value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError(f"--{name} is true or false, not {text!r}")
        return text.lower() in ("true", "1")
    kind = type(default) if default is not None else float
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{name} is of type {kind.__name__}, not {text!r}") from None


def _hosts_of(hosts_of: int, device: str, count: int) -> Topology:
    """The usual machine, but with another number of devices in each host."""
    if count % hosts_of:
        raise ValueError(
            f"a mesh of {count} devices does not fill hosts of {hosts_of}; choose a divisor"
        )
    return hosts_topology(device, hosts_of, count // hosts_of)


def _remedy(
    example: models.Example,
    mesh: Mesh,
    schedule: str,
    device: Device,
    topology: Topology,
    cost: Simulation,
) -> str:
    """One line: by how much it does not fit, and which known schedule or device would."""
    peak = cost.peak_memory_bytes
    head = (
        f"plan: {amount(peak, 'B', 1024)} a device do not fit {device.name}, which has "
        f"{amount(device.memory_bytes, 'B', 1024)}"
    )
    axes = list(mesh.axes)
    names = (axes[0], axes[1] if len(axes) > 1 else None)
    for template in _REMEDIES:
        if "{1}" in template and names[1] is None:
            continue
        other = template.format(*names)
        if other == schedule:
            continue
        try:
            tactics = parse_schedule(other)
            found = _plan(example, mesh, tactics, device, topology, True).steps[-1].simulation
        except ValueError:
            continue
        if found.fits:
            needs = amount(found.peak_memory_bytes, "B", 1024)
            return f"{head}; --schedule {other} would need {needs}"
    larger = [name for name, d in DEVICES.items() if d.memory_bytes >= peak]
    if larger:
        return f"{head}; no known schedule helps on this mesh, but it fits {', '.join(larger)}"
    return (
        f"{head}; no known schedule helps on this mesh: use more devices, a smaller batch, or "
        "checkpoint"
    )
