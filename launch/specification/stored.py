"""What every description of a run holds in the same words, whoever began it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..errors import RequestError
from ..experiment import Checkpointing, Evaluation, Partition

Kind = TypeVar("Kind")

ALONE: dict[str, Any] = dict.fromkeys(
    ("mesh", "schedule", "recompute", "memory", "placement", "data")
)
"""What a run has beside its policy, and is made without to judge that: one device, no data."""


def from_json(kind: type[Kind], values: Mapping[str, Any], otherwise: str) -> Kind:
    """A description made of the content of `config.json`.

    Args:
      kind: a dataclass with the fields `evaluation` and `checkpointing`.
      values: what `to_json` gave.
      otherwise: of a refusal: how the run can be gone on with all the same.

    Raises:
      RequestError: if the values are not those of the kind.
    """
    try:
        parts = {
            "evaluation": Evaluation(**values["evaluation"]),
            "checkpointing": Checkpointing(**values["checkpointing"]),
        }
        return kind(**{**values, **parts})
    except (KeyError, TypeError) as error:
        raise RequestError(
            f"config.json does not say all of the run ({error}); {otherwise}."
        ) from error


def partition(
    mesh: str,
    schedule: str,
    recompute: str | None = None,
    memory: float | None = None,
    placement: str | None = None,
) -> Partition:
    """How a step is spread, from words.

    Args:
      mesh: "data=4,model=2".
      schedule: "batch:data,megatron:model".
      recompute: "auto", to compute activations again where memory does not suffice.
      memory: how much of a device's memory the step may need, as a share of it.
      placement: "auto", to lay axes and sums onto the hierarchy of links.

    Raises:
      ValueError: if there is no such mesh, schedule or placement, or the share is none.
    """
    from ... import partitioning

    tactics, again = partitioning.parse_spread(schedule, recompute, memory)
    partitioning.laid_out(placement)
    return Partition(partitioning.parse_mesh(mesh), tactics, again, placement)
