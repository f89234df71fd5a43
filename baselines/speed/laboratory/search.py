"""The quality of automatic tactics.

    python -m troupe.baselines.speed.laboratory.search --json

Five parts, all predictions of the simulator for devices that need not be there:

- estimate: candidates of five families are judged twice, by the search's estimate and by the
  simulator in full. Rank correlation of time and memory, whether the simulator's best is among the
  estimate's first eight, what its first choice costs above the best, milliseconds a candidate. And
  what a candidate takes in a search on a transformer of so many layers, all in all.
- experts: a transformer with its batch split by hand; the search does the rest, and is held against
  the best of the schedules that people write for it.
- sizes: large language models, nothing by hand: how long the search takes after tracing, and how
  much memory this process has needed so far.
- free: nothing by hand, over all axes: every example and every agent's own update, two sizes, three
  meshes, two devices (:mod:`.cases`); held against the listed schedules and no split at all.
- held_out: the same for models that nothing was made with (:mod:`.heldout`).
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ....agents import examples
from ....partitioning import Automatic, Budget, Plan, Simulator, models, parse_mesh, parse_schedule
from ....partitioning.partition import partition
from ....partitioning.simulator.simulate import Simulation
from ....partitioning.tactics.search.moves import Move
from ....partitioning.tactics.search.space import Space
from ....partitioning.tactics.search.tree import Search
from ..partitioner import shown
from .cases import HELD_OUT, LARGE, LARGER, LISTED, Case, schedules
from .ranking import spearman

_PARTS = ("estimate", "experts", "sizes", "free", "held_out")
#: Large models, their meshes and their devices.
SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "gpt-1.3b": ({**LARGE, "num_layers": 24, "batch": 32}, "data=4,model=2"),
    "gpt-7b": (
        {**LARGE, "num_layers": 32, "width": 4096, "num_heads": 32, "batch": 128},
        "data=8,model=8",
    ),
}
#: What estimates are held against the simulator on.
FAMILIES = ("transformer", "mlp", "experts", "residual_net", "impala")


def planned(example: models.Example, mesh: str, schedule: Sequence[Any], device: str) -> Plan:
    """The plan of an example's step for a device."""
    step = partition(
        example.update,
        parse_mesh(mesh),
        schedule,
        donate=("state",),
        simulate=Simulator(device),
    )
    return step.plan(example.state_shapes, example.batch_shapes)


def best_listed(example: models.Example, mesh: str, device: str) -> tuple[str, Simulation]:
    """The fastest of the listed schedules that fit, and of none at all."""
    found: list[tuple[str, Simulation]] = []
    for schedule in schedules(example, parse_mesh(mesh).axes):
        try:
            plan = planned(example, mesh, parse_schedule(schedule), device)
        except ValueError:
            continue  # A dimension that does not divide by this mesh.
        found.append((schedule or "whole", plan.steps[-1].simulation))
    return min(found, key=lambda item: (not item[1].fits, item[1].predicted_seconds.total))


def candidates(moves: Sequence[Move], count: int, seed: int) -> Iterator[tuple[Move, ...]]:
    """So many sequences of moves: known tactics in turn, then pairs, then anything."""
    chance = random.Random(seed)
    known = [move for move in moves if move.tactic is not None]
    listed: list[tuple[Move, ...]] = [(), *((move,) for move in known)]
    listed += [(a, b) for a in known for b in known if a is not b]
    chance.shuffle(listed)
    yield from listed[: count // 2]
    for _ in range(count - min(len(listed), count // 2)):
        pool = moves if chance.random() < 0.7 or not known else known
        yield tuple(chance.sample(pool, min(len(pool), chance.randint(1, 4))))


def estimating(
    name: str, sizes: dict[str, Any], mesh: str, device: str, count: int
) -> dict[str, Any]:
    """One family: the estimate against the simulator."""
    plan = planned(examples.make(name, **sizes), mesh, (), device)
    space = Space(plan.context(("candidate",)), tuple(parse_mesh(mesh).axes))
    seconds, peaks, slow = [], [], 0.0
    found: dict[tuple[float, float], tuple[float, float]] = {}
    for moves in candidates(space.moves, count, seed=0):
        started = time.process_time()
        estimated = space.estimated(moves)
        slow += time.process_time() - started
        simulated = space.simulated(moves)
        key = simulated.predicted_seconds.total, float(simulated.peak_memory_bytes)
        found[key] = estimated.seconds, estimated.peak
    for (exact, nbytes), (thought, peak) in found.items():
        seconds.append((exact, thought))
        peaks.append((nbytes, peak))
    order = sorted(range(len(seconds)), key=lambda i: seconds[i][1])
    least = min(exact for exact, _ in seconds)
    return {
        "model": name,
        "device": device,
        "plans": len(found),
        "classes": len(space.classes.nodes),
        "ops": len(plan.graph.nodes),
        "spearman_seconds": round(spearman(*zip(*seconds, strict=True)), 4),
        "spearman_bytes": round(spearman(*zip(*peaks, strict=True)), 4),
        "error_seconds": round(statistics.median(abs(b / a - 1) for a, b in seconds), 4),
        "error_bytes": round(statistics.median(abs(b / a - 1) for a, b in peaks), 4),
        "best_in_first_eight": any(seconds[i][0] <= least * 1.0001 for i in order[:8]),
        "regret": round(seconds[order[0]][0] / least - 1, 4),
        "regret_of_first_eight": round(min(seconds[i][0] for i in order[:8]) / least - 1, 4),
        "milliseconds": round(1e3 * slow / count, 2),
    }


def in_all(families: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a summary over families; ranks are compared within each, as times differ between."""
    plans = sum(family["plans"] for family in families)

    def mean(name: str) -> float:
        return round(sum(f[name] * f["plans"] for f in families) / plans, 4)

    return {
        "families": len(families),
        "plans": plans,
        "spearman_seconds": mean("spearman_seconds"),
        "spearman_bytes": mean("spearman_bytes"),
        "least_spearman_seconds": min(family["spearman_seconds"] for family in families),
        "least_spearman_bytes": min(family["spearman_bytes"] for family in families),
        "best_in_first_eight": sum(family["best_in_first_eight"] for family in families),
        "worst_regret_of_first_eight": max(f["regret_of_first_eight"] for f in families),
        "milliseconds": mean("milliseconds"),
    }


def searching(num_layers: int, estimates: int) -> dict[str, Any]:
    """Returns the CPU time of a candidate within a search, its moves and the tree included."""
    example = models.make("transformer", **LARGE, num_layers=num_layers, batch=4)
    plan = planned(example, "data=4,model=2", parse_schedule("batch:data"), "h200")
    space = Space(plan.context(("candidate",)), ("model", "data"))
    search = Search(space, lambda estimated: estimated.seconds, estimates, None, 0)
    started = time.process_time()
    search.run()
    spent = time.process_time() - started
    return {
        "layers": num_layers,
        "classes": len(space.classes.nodes),
        "ops": len(plan.graph.nodes),
        "estimates": len(search.candidates),
        "milliseconds": round(1e3 * spent / len(search.candidates), 2),
    }


def expert(num_layers: int, seed: int, estimates: int, device: str = "h200") -> dict[str, Any]:
    """One search beside a batch that is split by hand."""
    example = models.make("transformer", **LARGE, num_layers=num_layers, batch=4)
    mesh = "data=4,model=2"
    name, best = best_listed(example, mesh, device)
    megatron = planned(example, mesh, parse_schedule("batch:data,megatron:model"), device)
    automatic = Automatic(("model", "data"), budget=Budget(estimates=estimates, seed=seed))
    started = time.perf_counter()
    found = planned(example, mesh, [*parse_schedule("batch:data"), automatic], device)
    wall = time.perf_counter() - started
    cost = found.steps[-1].simulation
    log = found.steps[-1].log
    theirs = [(n.op, f["model"]) for n, f in megatron.state.factors.items() if "model" in f]
    ours = {n.op: f.get("model") for n, f in found.state.factors.items()}
    # Both programs are traced from one function, and number their ops alike.
    place = _numbers(megatron), _numbers(found)
    here = {place[1][op]: factor for op, factor in ours.items() if op is not None}
    same = [here.get(place[0][op]) == factor for op, factor in theirs if op is not None]
    return {
        "layers": num_layers,
        "seed": seed,
        "best_listed": name,
        "best_listed_seconds": best.predicted_seconds.total,
        "best_listed_bytes": best.peak_memory_bytes,
        "seconds": cost.predicted_seconds.total,
        "bytes": cost.peak_memory_bytes,
        "ratio": round(cost.predicted_seconds.total / best.predicted_seconds.total, 4),
        "like_megatron": round(statistics.mean(same), 4),
        "estimates": log.estimates,
        "search_seconds": round(log.wall_seconds, 2),
        "plan_seconds": round(wall, 2),
        "moves": list(log.judged[0].moves),
    }


def sizing(name: str, estimates: int, device: str = "h200") -> dict[str, Any]:
    """A search over both axes of a large model."""
    sizes, mesh = SIZES[name]
    example = models.make("transformer", **sizes)
    parameters = example.state_shapes["params"]
    automatic = Automatic(tuple(parse_mesh(mesh).axes), budget=Budget(estimates=estimates))
    started = time.perf_counter()
    found = planned(example, mesh, [automatic], device)
    wall = time.perf_counter() - started
    log, cost = found.steps[-1].log, found.steps[-1].simulation
    return {
        "model": name,
        "mesh": mesh,
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(parameters)),
        "ops": log.classes[1],
        "classes": log.classes[0],
        "estimates": log.estimates,
        "search_seconds": round(log.wall_seconds, 2),
        "plan_seconds": round(wall, 2),
        "process_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "seconds": cost.predicted_seconds.total,
        "bytes": cost.peak_memory_bytes,
        "moves": list(log.judged[0].moves),
    }


def _numbers(plan: Plan) -> dict[Any, int]:
    return {op: i for i, op in enumerate(plan.graph.program.walk())}


def free(case: Case, estimates: int) -> dict[str, Any]:
    """One search from nothing, over all axes of the mesh."""
    example = case.example()
    name, best = best_listed(example, case.mesh, case.device)
    automatic = Automatic(tuple(parse_mesh(case.mesh).axes), budget=Budget(estimates=estimates))
    started = time.perf_counter()
    found = planned(example, case.mesh, [automatic], case.device)
    cost = found.steps[-1].simulation
    return {
        "case": case.name,
        "best_listed": name,
        "ratio": round(cost.predicted_seconds.total / best.predicted_seconds.total, 4),
        "fits": cost.fits,
        "estimates": found.steps[-1].log.estimates,
        "seconds": round(time.perf_counter() - started, 2),
        "moves": list(found.steps[-1].log.judged[0].moves),
    }


def freely(names: Sequence[Case], estimates: int, out: pathlib.Path | None) -> dict[str, Any]:
    """Free searches, those that a file holds left out and the others added to it."""
    known: dict[str, dict[str, Any]] = {}
    if out is not None and out.exists():
        lines = out.read_text(encoding="utf-8").splitlines()
        known = {row["case"]: row for row in map(json.loads, lines)}
    rows = []
    for case in names:
        row = known.get(case.name)
        if row is None:
            row = shown(free(case, estimates))
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        rows.append(row)
    ratios = [row["ratio"] for row in rows]
    return {
        "cases": len(rows),
        "within_2_percent": round(statistics.mean(r <= 1.02 for r in ratios), 4),
        "better_by_2_percent": round(statistics.mean(r < 0.98 for r in ratios), 4),
        "median": statistics.median(ratios),
        "worst": max(ratios),
        "longest_seconds": max(row["seconds"] for row in rows),
        "beyond": {row["case"]: row["ratio"] for row in rows if row["ratio"] > 1.02},
        "rows": rows,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m troupe.baselines.speed.laboratory.search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--only", choices=_PARTS, help="measure one part alone")
    parser.add_argument("--plans", type=int, default=60, help="of each family (default 60)")
    parser.add_argument("--layers", default="2,8,24", help="of the transformers searched")
    parser.add_argument("--seeds", type=int, default=5, help="of each search (default 5)")
    parser.add_argument("--estimates", type=int, default=300, help="of each search (default 300)")
    parser.add_argument("--models", default="", help="names: families or free cases, not others")
    parser.add_argument(
        "--cases", type=int, help="so many free cases, drawn from all (default all)"
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="a file for free and held-out cases, a line as each comes; those in it are taken "
        "from it, so that a run that was stopped goes on",
    )
    options = parser.parse_args(argv)
    wanted = [name for name in options.models.split(",") if name]
    found: dict[str, Any] = {}
    if options.only in (None, "estimate"):
        found["estimate"] = [
            shown(estimating(name, LARGER[name], "data=4,model=2", "h200", options.plans))
            for name in wanted or FAMILIES
        ]
        found["estimate_in_all"] = shown(in_all(found["estimate"]))
        found["searching"] = [
            shown(searching(int(layers), options.estimates)) for layers in options.layers.split(",")
        ]
    if options.only in (None, "experts"):
        found["experts"] = [
            shown(expert(int(layers), seed, options.estimates))
            for layers in options.layers.split(",")
            for seed in range(options.seeds)
        ]
    if options.only in (None, "sizes"):
        found["sizes"] = [
            shown(sizing(name, options.estimates))
            for name in SIZES
            if options.only is None or not wanted or name in wanted
        ]
    for part, all_of_it in (("free", LISTED), ("held_out", HELD_OUT)):
        if options.only in (None, part):
            names = [c for c in all_of_it if not wanted or c.model in wanted]
            if part == "free" and options.cases and options.cases < len(names):
                names = random.Random(0).sample(names, options.cases)
            found[part] = freely(names, options.estimates, options.out)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
