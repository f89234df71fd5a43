"""The parts of a description of a run that are the same, whoever began it."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import RequestError
from ..experiment import Checkpointing, Evaluation, Partition
from ..roles import LAUNCHPAD

if TYPE_CHECKING:
    from ... import partitioning

Kind = TypeVar("Kind")

SAMPLER = ("sampler_mesh", "sampler_schedule")
"""The words of the `Partition` of a policy with a mesh of its own."""
PLACEMENT = ("mesh", "schedule", "recompute", "memory", "placement", "device", "plan")
"""The words of a `Partition`."""
ALONE: dict[str, Any] = {
    **dict.fromkeys((*PLACEMENT, *SAMPLER, "data")),
    **dict.fromkeys(("actor_device", "learner_device"), "auto"),
}
"""The parts of a run that its policy is judged without: it is on one device, without data."""


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
        roles = dict(values.get("roles", {}))
        # The learner's device was among them before it was the experiment's.
        device = {name: roles.pop(name) for name in ("learner_device",) if name in roles}
        return kind(**{**values, **parts, **device, "roles": roles, "engine": engine(values)})
    except (KeyError, TypeError) as error:
        raise RequestError(
            f"config.json does not say all of the run ({error}); {otherwise}."
        ) from error


def engine(values: Mapping[str, Any]) -> str | None:
    """Returns the engine of the run that a `config.json` describes.

    Processes were those of Launchpad alone before there was a choice, and it was not written down.
    """
    before = LAUNCHPAD if values.get("launch") == "processes" else None
    return values.get("engine", before)


def partition(
    mesh: str | None = None,
    schedule: str | None = None,
    recompute: str | None = None,
    memory: float | None = None,
    placement: str | None = None,
    device: str | None = None,
    plan: str | None = None,
) -> Partition | None:
    """Makes a partition of words; of none, None.

    Args:
      mesh: "data=4,model=2".
      schedule: "batch:data,megatron:model"; None: the batch over a mesh's only axis.
      recompute: "auto", to compute activations again where memory does not suffice.
      memory: how much of a device's memory the step may need, as a share of it.
      placement: "auto", to lay axes and sums onto the hierarchy of links.
      device: what the step is planned for: a preset or the file of a calibration.
      plan: file of a plan (`save_plan`), which says all of these.

    Raises:
      ValueError: if there is no such mesh, schedule, placement or plan, or the share is none.
    """
    words = {"recompute": recompute, "memory": memory, "placement": placement, "device": device}
    given = [name for name, word in words.items() if word is not None]
    if plan is not None:
        asked = [*(name for name, word in (("mesh", mesh), ("schedule", schedule)) if word), *given]
        if asked:
            raise RequestError(f"--{asked[0]} was given beside --plan {plan}, which says it.")
        return _planned(plan)
    if mesh is None and schedule is None:
        if given:
            compute = ""
            if device is not None:  # Where other libraries say what computes.
                compute = " What computes is said by --learner-device and --actor-device."
            raise RequestError(
                f"--{given[0]} was given without --mesh and --schedule, whose step it is of."
                f"{compute}"
            )
        return None
    if mesh is None:
        raise RequestError("--schedule was given without --mesh; give both or neither.")
    from ... import partitioning  # Only who has a mesh pays for it.

    if schedule is None:
        axes = list(partitioning.parse_mesh(mesh).axes)
        if len(axes) > 1:
            raise RequestError(
                f"--mesh {mesh} was given without --schedule, which says what its "
                f"{len(axes)} axes divide; only over a mesh of one axis is it batch by default."
            )
        schedule = f"batch:{axes[0]}"
    tactics, again = partitioning.parse_spread(schedule, recompute, memory)
    partitioning.laid_out(placement)
    return Partition(partitioning.parse_mesh(mesh), tactics, again, placement, device)


def sampler(mesh: str | None = None, schedule: str | None = None) -> Partition | None:
    """Makes the partition of a policy with a mesh of its own; without words, None.

    Args:
      mesh: "model=2".
      schedule: "megatron:model"; None: a mesh of one device needs no tactics.

    Raises:
      ValueError: if there is no such mesh or schedule, or one of them is missing.
    """
    if mesh is None:
        if schedule is not None:
            raise RequestError(
                "--sampler-schedule was given without --sampler-mesh; give both or neither."
            )
        return None
    from ... import partitioning  # Only who has a mesh pays for it.

    parsed = partitioning.parse_mesh(mesh)
    if schedule is None and parsed.size > 1:
        raise RequestError(
            f"--sampler-mesh {mesh} was given without --sampler-schedule, which says what its "
            f"{parsed.size} devices divide: megatron:{[*parsed.axes][-1]}, say."
        )
    return Partition(parsed, tuple(partitioning.parse_schedule(schedule or "")))


def save_plan(
    path: str | os.PathLike[str], words: Mapping[str, Any], plan: partitioning.Plan
) -> None:
    """Writes a plan that `partition` reads: its words, and all that was decided by them."""
    said = {name: words.get(name) for name in PLACEMENT if name not in ("device", "plan")}
    content = {"words": said, "decisions": plan.decisions.to_json()}
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n")


def _planned(path: str) -> Partition:
    from ... import partitioning

    try:
        content = json.loads(pathlib.Path(path).read_text())
        words, decisions = content["words"], content["decisions"]
    except OSError as error:
        raise RequestError(f"--plan {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"--plan {path} is no plan; `troupe plan ... --save-plan FILE` writes one."
        ) from error
    spread = (words["schedule"], words["recompute"], words["memory"])
    tactics, again = partitioning.parse_spread(*spread)
    return Partition(
        partitioning.parse_mesh(words["mesh"]),
        tactics,
        again,
        words["placement"],
        decisions=partitioning.PlanDecisions.from_json(decisions),
    )
