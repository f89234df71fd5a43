"""`PlanDecisions`: all that a plan decided, as a value for other processes and for files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .ir.fingerprint import fingerprint, input_texts
from .options import PlanOptions
from .record import PlanRecord
from .rematerialization.recompute import Recompute
from .simulator.attach import Simulator
from .simulator.device import read_saved
from .simulator.presets import get_device

#: Raised when what is saved changes, or what it means.
VERSION = 1


@dataclasses.dataclass(frozen=True)
class PlanDecisions:
    """The decisions of a plan as plain data: `pt.partition(..., decisions=...)` carries them out.

    Attributes:
      fingerprint: of the traced step.
      inputs: path and type of each of the step's inputs, for messages.
      mesh: sizes of the axes.
      schedule: names and axes of the tactics.
      donate, recompute, placement, reductions: of the options; of `recompute` the share of memory.
      simulator: the device and the topology planned for, by value.
      passes: the decisions of every pass by its name; those of tactics by position in the program.
      version: of this form.
    """

    fingerprint: str
    inputs: tuple[str, ...]
    mesh: Mapping[str, int]
    schedule: tuple[tuple[str, str], ...]
    donate: tuple[str, ...]
    recompute: float | None
    placement: str | None
    reductions: str
    simulator: Mapping[str, Any]
    passes: Mapping[str, Any]
    version: int = VERSION

    @classmethod
    def of(cls, record: PlanRecord, passes: Mapping[str, Any]) -> PlanDecisions:
        """The decisions of a record that these passes made."""
        options, program = record.options, record.graph.program
        recompute = None if options.recompute is None else options.recompute.memory
        return cls(
            fingerprint(program), input_texts(program), dict(record.mesh.axes), _names(record),
            options.donate, recompute, options.placement, options.reductions,
            _plain(record.judge.simulator.to_json()), _plain(passes),
        )  # fmt: skip

    def options(self, given: PlanOptions) -> PlanOptions:
        """The options of the plan, of those given only what plans do not show.

        Raises:
          ValueError: an option that is given and was another one.
        """
        made = PlanOptions(
            donate=self.donate,
            simulate=Simulator.from_json(self.simulator),
            bundle=given.bundle,
            weights=given.weights,
            co_shard=given.co_shard,
            recompute=None if self.recompute is None else Recompute(self.recompute),
            placement=self.placement,
            reductions=self.reductions,
        )
        default = PlanOptions()
        for field in dataclasses.fields(PlanOptions):
            asked, had = getattr(given, field.name), getattr(made, field.name)
            if asked not in (had, getattr(default, field.name)):
                raise ValueError(
                    f"the decisions were made with {field.name}={_short(had)}, not "
                    f"{_short(asked)}; leave the option out, or plan anew without decisions"
                )
        return made

    def check(self, record: PlanRecord) -> None:
        """Raises ValueError, saying what differs, where these are not decisions on this step."""
        program = record.graph.program
        for what, ours, theirs in (
            ("mesh", self.mesh, dict(record.mesh.axes)),
            ("schedule", self.schedule, _names(record)),
        ):
            if ours != theirs:
                raise ValueError(
                    f"the decisions were made for the {what} {_listed(ours)}, not for "
                    f"{_listed(theirs)}; plan anew without decisions"
                )
        if self.fingerprint != fingerprint(program):
            pairs = zip(self.inputs, inputs := input_texts(program), strict=False)
            other = next((f": its input {a} is {b} here" for a, b in pairs if a != b), "")
            if not other and len(self.inputs) != len(inputs):
                other = f": it has {len(self.inputs)} inputs, this one {len(inputs)}"
            raise ValueError(
                f"the decisions were made for another step{other} (fingerprint "
                f"{self.fingerprint[:8]}, not {fingerprint(program)[:8]}); plan anew without "
                "decisions"
            )

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes equal decisions."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanDecisions:
        """The decisions that `to_json` wrote.

        Raises:
          ValueError: those of another version, or anything else.
        """
        if data.get("version") != VERSION:
            raise ValueError(
                f"decisions of version {data.get('version')!r} are not of version {VERSION}, which "
                "this release reads; plan anew without decisions"
            )
        fields = {field.name for field in dataclasses.fields(cls)}
        if set(data) != fields:
            wrong = sorted(fields.symmetric_difference(data))
            raise ValueError(f"no decisions of a plan: fields {wrong} are missing or unknown")
        told = dict(data)
        told["schedule"] = tuple((name, axis) for name, axis in data["schedule"])
        return cls(**told | {name: tuple(data[name]) for name in ("inputs", "donate")})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the decisions as JSON."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PlanDecisions:
        """Reads what `save` wrote.

        Raises:
          ValueError: naming the file, where it is not there or holds anything else.
        """
        return read_saved(path, cls.from_json, "plan", "Write it anew with plan.decisions.save()")


def _names(record: PlanRecord) -> tuple[tuple[str, str], ...]:
    return tuple((tactic.name, tactic.axis) for tactic in record.schedule)


def _plain(value: Any) -> Any:
    """A value with lists in the place of tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def _listed(found: Mapping[str, int] | Iterable[tuple[str, str]]) -> str:
    if isinstance(found, Mapping):
        return ",".join(f"{name}={size}" for name, size in found.items())
    return ",".join(f"{name}:{axis}" for name, axis in found) or "without tactics"


def _short(value: Any) -> str:
    """An option in a message: of a simulator its device alone."""
    return repr(get_device(value.device).name if isinstance(value, Simulator) else value)
