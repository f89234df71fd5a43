"""Prints the cost of a schedule of a step, without a device: `python -m troupe.partitioning`.

    python -m troupe.partitioning my_module:step --devices 32 --device h100 --memory 40GB

chooses mesh and schedule for a step of your own (see `steps.of_module`).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Sequence

from . import models, steps
from .choose import choose
from .decide.actions import Tactic
from .mesh import Mesh, parse_mesh
from .options import PlanOptions
from .partition import partition
from .placement.place import laid_out
from .plan import Plan
from .printing import report
from .simulator.at_hand import choose_device
from .simulator.attach import Simulator
from .simulator.device import Device
from .simulator.pictures import save_plan
from .simulator.presets import DEVICES, get_device, hosts_topology
from .simulator.profile import profile
from .simulator.simulate import Simulation, amount, saved_topology, topology_of
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
        prog="python -m troupe.partitioning [MODULE:NAME]",
        description=__doc__,
        epilog="Any field of the model's config is a flag as well, e.g. --layers 32 --width 4096 "
        f"--batch 64 --dtype bfloat16. Models: {', '.join(models.CATALOGUE)}. "
        f"Devices: {', '.join(DEVICES)}, or a file written by calibrate().save().",
    )
    parser.add_argument("--model", default="transformer", help="one of the example models")
    parser.add_argument("--mesh", help="e.g. data=16,model=2 (default data=8)")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="choose mesh and schedule for so many devices"
    )
    parser.add_argument("--schedule", default="", help="e.g. batch:data,megatron:model,zero3:data")
    parser.add_argument(
        "--device",
        default="auto",
        help="a preset, or the path of a calibration; by default the device at hand, or an h200",
    )
    parser.add_argument("--hosts-of", type=int, default=0, metavar="N", help="devices in one host")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--profile", action="store_true", help="also print FLOPs by module")
    parser.add_argument(
        "--recompute", choices=("auto",), help="compute activations again to keep to --memory"
    )
    parser.add_argument(
        "--memory", metavar="SHARE", help="of the device's that a step may need; or 40GB"
    )
    parser.add_argument(
        "--placement",
        choices=("auto",),
        help="lay axes and sums onto the hierarchy of links as is quickest",
    )
    parser.add_argument("--no-overlap", action="store_true", help="collectives wait for kernels")
    parser.add_argument("--save", metavar="FILE.png", help="draw memory, time and tactics")
    flags = list(argv)
    # Not argparse's, which would take the value of a model's flag for it.
    own = flags.pop(0) if flags and not flags[0].startswith("-") else None
    args, rest = parser.parse_known_args(flags)
    device, memory = _with_memory(choose_device(args.device), args.memory)
    if own is None:
        step = steps.of_model(args.model, rest)
    elif rest:
        raise ValueError(f"{own} takes no {rest[0]}; its sizes are its own")
    else:
        step = steps.of_module(own)
    if args.devices is not None and (args.mesh is not None or args.schedule):
        raise ValueError("--devices has mesh and schedule chosen; give it without them")
    mesh = parse_mesh(args.mesh or f"data={args.devices or 8}")
    topology = saved_topology(args.device) or topology_of(device, mesh.size)
    if args.hosts_of > 0:
        topology = _hosts_of(args.hosts_of, device.name, mesh.size)
    topology.place(mesh.axes)
    tactics, recompute = parse_spread(
        "auto:data" if args.devices is not None else args.schedule, args.recompute, memory
    )
    options = PlanOptions(
        donate=step.donated or (),
        simulate=Simulator(device, topology, not args.no_overlap and device.kind != "cpu"),
        recompute=recompute,
        **laid_out(args.placement),
    )

    unpartitioned = partition(step.fn, mesh, (), options)
    if step.donated is None:
        unpartitioned = unpartitioned.giving_state(*step.arguments)

    def planned(mesh: Mesh, tactics: Sequence[Tactic]) -> Plan:
        return unpartitioned.with_schedule(mesh, tactics).plan(*step.arguments)

    if args.devices is not None:
        chosen = choose(planned, args.devices, 1.0 if memory is None else memory)
        plan = chosen.plan
        if not args.json:
            print(chosen)
    else:
        plan = planned(mesh, tactics)
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
        print(_remedy(planned, plan.mesh, args.schedule, last), file=sys.stderr)
    return 0


def _with_memory(device: Device, text: str | None) -> tuple[Device, float | None]:
    """The device with so much memory, or the share of it; a share is a number alone.

    Raises:
      ValueError: it is neither.
    """
    if text is None:
        return device, None
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+) *(?:([KMGT])(i?)B)?", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"--memory is a share such as 0.9, or 40GB; not {text!r}")
    number, unit, binary = float(found[1]), found[2], found[3]
    if unit is None:
        return device, number
    nbytes = number * (1024 if binary else 1000) ** (1 + "KMGT".index(unit.upper()))
    limit = f"as --memory is {text}"
    return dataclasses.replace(device, memory_bytes=int(nbytes), limit=limit), None


def _hosts_of(hosts_of: int, device: str, count: int) -> Topology:
    """The usual machine, but with another number of devices in each host."""
    if count % hosts_of:
        raise ValueError(
            f"a mesh of {count} devices does not fill hosts of {hosts_of}; choose a divisor"
        )
    return hosts_topology(device, hosts_of, count // hosts_of)


def _remedy(
    planned: Callable[[Mesh, Sequence[Tactic]], Plan], mesh: Mesh, schedule: str, cost: Simulation
) -> str:
    """One line: by how much it does not fit, and which known schedule or device would."""
    peak, device = cost.peak_memory_bytes, cost.device
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
            found = planned(mesh, parse_schedule(other)).steps[-1].simulation
        except ValueError:
            continue
        if found.fits:
            needs = amount(found.peak_memory_bytes, "B", 1024)
            return f"{head}; --schedule {other} would need {needs}"
    larger = [name for name in DEVICES if get_device(name).memory_bytes >= peak]
    if larger:
        return f"{head}; no known schedule helps on this mesh, but it fits {', '.join(larger)}"
    return (
        f"{head}; no known schedule helps on this mesh: use more devices, a smaller batch, or "
        "checkpoint"
    )
