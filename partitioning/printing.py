"""A plan as commands print it: what each tactic did, beside one device, and what the last costs."""

from __future__ import annotations

from .plan import Plan
from .simulator.simulate import Simulation, amount


def report(plan: Plan) -> str:
    """The plan's table with a row for one device first, and the breakdown of its last step."""
    return f"{plan.text(plan.rows())}\n{breakdown(plan.steps[-1].simulation)}"


def breakdown(cost: Simulation) -> str:
    """Lists the parts of memory and time, and the arrays that are alive at the peak."""
    seconds = cost.predicted_seconds
    memory = cost.memory
    lines = [
        f"memory: {amount(memory.arguments, 'B', 1024)} arguments, "
        f"{amount(memory.outputs, 'B', 1024)} results "
        f"({amount(memory.aliased, 'B', 1024)} in donated arguments), "
        f"{amount(memory.temporaries, 'B', 1024)} temporaries",
        f"time: {cost.shown_seconds(' s')}: {seconds.compute:.4g} s kernels, "
        f"{seconds.communication:.4g} s collectives, {seconds.exposed:.4g} s of them exposed",
        "alive at the peak:",
    ]
    for owner in memory.owners[:8]:
        size = amount(owner.nbytes, "B", 1024)
        line = f"  {size:>10}  {owner.kind:9}  {owner.name}  {owner.types}  {owner.source}"
        lines.append(line.rstrip())
    return "\n".join(lines)
