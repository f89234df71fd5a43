"""Tactics: ways to split a step that are known by name, each found from the step's structure.

Anything with a `name`, an `axis` and `actions(context)` is a tactic; these are ordinary code over
the same actions that :class:`~troupe.partitioning.Manual` takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..decide.actions import Tactic
from ..pipelines.pipeline import Pipeline as pipeline
from ..rematerialization.recompute import Recompute
from .batch import BatchParallel as batch_parallel
from .batch import SequenceParallel as sequence
from .manual import Hints as hints
from .search.automatic import Automatic as automatic
from .search.automatic import Goal
from .weights import Embedding as embedding
from .weights import Expert as expert
from .weights import Megatron as megatron
from .zero import Zero1 as zero1
from .zero import Zero2 as zero2
from .zero import Zero3 as zero3

#: The tactics a command line knows, by the name it uses.
NAMED: dict[str, Callable[[str], Tactic]] = {
    "auto": automatic.parse,
    "batch": batch_parallel,
    "embedding": embedding,
    "expert": expert,
    "hints": hints,
    "megatron": megatron,
    "pipeline": pipeline.parse,
    "sequence": sequence,
    "zero1": zero1,
    "zero2": zero2,
    "zero3": zero3,
}


def parse_schedule(text: str, memory: float | None = None) -> list[Tactic]:
    """The schedule written "batch:data,megatron:model,zero3:data", or "batch:data,auto:model+data".

    Args:
      text: tactics in order.
      memory: the goal of those that search: the share of a device's memory that a plan may need.

    Raises:
      ValueError: naming the part that does not read, and the tactics there are.
    """
    schedule: list[Tactic] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, colon, axis = part.partition(":")
        if not colon or not axis:
            raise ValueError(
                f"schedule {text!r}: {part!r} is not TACTIC:AXIS; write e.g. batch:data,zero3:data"
            )
        if name not in NAMED:
            raise ValueError(f"schedule {text!r}: no tactic {name!r}; there are {', '.join(NAMED)}")
        tactic = NAMED[name](axis)
        if memory is not None and isinstance(tactic, automatic):
            tactic = dataclasses.replace(tactic, goal=Goal(memory))
        schedule.append(tactic)
    return schedule


def parse_spread(
    schedule: str, recompute: str | None, memory: float | None
) -> tuple[list[Tactic], Recompute | None]:
    """Reads the arguments --schedule, --recompute auto and --memory 0.9 of a command line.

    Returns:
      The tactics, and the recomputation or None.

    Raises:
      ValueError: a part is malformed, or a share of memory is given that nothing keeps to.
    """
    tactics = parse_schedule(schedule, memory)
    if recompute not in (None, "auto"):
        raise ValueError(f"--recompute is auto, or is not given; not {recompute!r}")
    if recompute is None:
        if memory is not None and not any(isinstance(t, automatic) for t in tactics):
            raise ValueError(
                "--memory was given without --recompute auto and without an auto:AXIS in the "
                "schedule, which keep to it"
            )
        return tactics, None
    return tactics, Recompute() if memory is None else Recompute(memory)


__all__ = [
    "NAMED", "automatic", "batch_parallel", "embedding", "expert", "hints", "megatron",
    "parse_schedule", "parse_spread", "pipeline", "sequence", "zero1", "zero2", "zero3",
]  # fmt: skip
