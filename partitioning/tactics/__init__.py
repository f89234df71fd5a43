"""Tactics: ways to split a step that are known by name, each found from the step's structure.

Anything with a `name`, an `axis` and `actions(context)` is a tactic; these are ordinary code over
the same actions that :class:`~troupe.partitioning.Manual` takes.
"""

from __future__ import annotations

from collections.abc import Callable

from ..decide.actions import Tactic
from .batch import BatchParallel as batch_parallel
from .batch import SequenceParallel as sequence
from .search.automatic import Automatic as automatic
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
    "megatron": megatron,
    "sequence": sequence,
    "zero1": zero1,
    "zero2": zero2,
    "zero3": zero3,
}


def parse_schedule(text: str) -> list[Tactic]:
    """The schedule written "batch:data,megatron:model,zero3:data", or "batch:data,auto:model+data".

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
        schedule.append(NAMED[name](axis))
    return schedule


__all__ = [
    "NAMED", "automatic", "batch_parallel", "embedding", "expert", "megatron", "parse_schedule",
    "sequence", "zero1", "zero2", "zero3",
]  # fmt: skip
