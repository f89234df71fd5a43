"""A pipeline schedule as a table: steps by devices, each cell one work of one micro-batch."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .edges import Edges, Task, Work

_LETTERS: Mapping[Work, str] = {"forward": "F", "backward": "B", "inputs": "I", "weights": "W"}
_WORKS = {letter: work for work, letter in _LETTERS.items()}
_CELL = re.compile(r"([FBIW])(\d+)\.(\d+)")
_IDLE = "."


class PipelineCell(NamedTuple):
    """One work of one segment on one micro-batch.

    Attributes:
      segment: number of the segment, from 0.
      microbatch: number of the micro-batch, from 0.
      work: "forward"; "backward", which makes gradients of inputs and weights at once; "inputs" or
        "weights", which make one of them.
    """

    segment: int
    microbatch: int
    work: Work

    def __str__(self) -> str:
        """The cell as a table prints it: "B2.5" is backward of segment 2, micro-batch 5."""
        return f"{_LETTERS.get(self.work, '?')}{self.segment}.{self.microbatch}"

    @property
    def task(self) -> Task:
        """The task of the edges that others read from this cell, were it of that kind."""
        return self.segment, "forward" if self.work == "forward" else "backward"

    def sources(self, edges: Edges) -> Iterator[tuple[PipelineCell, ...]]:
        """The cells that this one reads: for each value the cells that can make it, one of which
        is in the table.
        """
        if self.work == "weights":
            yield (self._replace(work="inputs"),)
            return
        for segment, work in edges.sources.get(self.task, ()):
            makers: tuple[Work, ...] = ("forward",) if work == "forward" else ("backward", "inputs")
            yield tuple(PipelineCell(segment, self.microbatch, maker) for maker in makers)


def parse_cell(text: str) -> PipelineCell | None:
    """A cell from its text; "." is no work.

    Raises:
      ValueError: the text is of another form.
    """
    if text == _IDLE:
        return None
    found = _CELL.fullmatch(text)
    if not found:
        raise ValueError(
            f"cell {text!r} is not of the form B2.5, which is backward of segment 2 on "
            "micro-batch 5; letters are F, B, I and W, and an idle cell is '.'"
        )
    letter, segment, microbatch = found.groups()
    return PipelineCell(int(segment), int(microbatch), _WORKS[letter])


@dataclasses.dataclass(frozen=True)
class PipelineTable:
    """A schedule: what each device does in each step.

    Attributes:
      placement: for each segment, its devices as indices along the axis; usually one, and all of
        them if the segment runs on the whole axis in one step.
      microbatches: into how many micro-batches the batch is split.
      cells: [steps][devices] what is done; None where a device is idle.
    """

    placement: tuple[tuple[int, ...], ...]
    microbatches: int
    cells: tuple[tuple[PipelineCell | None, ...], ...]

    def __post_init__(self) -> None:
        if not self.placement or not all(self.placement):
            raise ValueError(f"placement {self.placement} leaves a segment without a device")
        if self.microbatches < 1:
            raise ValueError(f"{self.microbatches} micro-batches; a table needs at least one")
        for step, row in enumerate(self.cells):
            if len(row) != self.devices:
                raise ValueError(
                    f"step {step} has {len(row)} cells, the first one {self.devices}: one for each "
                    "device"
                )
        for segment, places in enumerate(self.placement):
            if not all(0 <= place < self.devices for place in places):
                raise ValueError(
                    f"segment {segment} is placed on devices {[*places]} of {self.devices}"
                )
            if len(set(places)) < len(places):
                raise ValueError(f"segment {segment} is placed twice on a device: {[*places]}")

    @classmethod
    def of(
        cls,
        placement: Sequence[Sequence[int]],
        microbatches: int,
        places: Iterable[tuple[int, int, PipelineCell]],
    ) -> PipelineTable:
        """A table from its cells, each with its step and its device.

        Raises:
          ValueError: two cells are at one step on one device, or one is on a device without a
            segment.
        """
        found: dict[tuple[int, int], PipelineCell] = {}
        devices = 1 + max(max(one) for one in placement)
        for step, device, cell in places:
            other = found.setdefault((step, device), cell)
            if other != cell:
                raise ValueError(f"{other} and {cell} are both at step {step} on device {device}")
            if not 0 <= device < devices:
                raise ValueError(f"{cell} is on device {device}; segments are on {devices}")
        steps = 1 + max((step for step, _ in found), default=-1)
        rows = (tuple(found.get((step, d)) for d in range(devices)) for step in range(steps))
        return cls(tuple(map(tuple, placement)), microbatches, tuple(rows))

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.cells)

    @property
    def devices(self) -> int:
        """The number of devices of the axis."""
        if self.cells:
            return len(self.cells[0])
        return 1 + max(max(places) for places in self.placement)

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.placement)

    @functools.cached_property
    def step_of(self) -> Mapping[PipelineCell, int]:
        """The step of every cell; the first one where a cell is there more than once."""
        found: dict[PipelineCell, int] = {}
        for step, row in enumerate(self.cells):
            for cell in row:
                if cell is not None:
                    found.setdefault(cell, step)
        return found

    def orders(self) -> tuple[tuple[PipelineCell, ...], ...]:
        """For each device its cells in order, without the idle ones."""
        columns = zip(*self.cells, strict=True) if self.cells else ((),) * self.devices
        return tuple(tuple(cell for cell in column if cell is not None) for column in columns)

    def source(self, cell: PipelineCell, makers: tuple[PipelineCell, ...]) -> PipelineCell | None:
        """The one of the cells that can make a value which the table has; None if it has none."""
        return next((maker for maker in makers if maker in self.step_of), None)

    def __str__(self) -> str:
        places = " ".join(
            f"{segment}={'+'.join(map(str, devices))}"
            for segment, devices in enumerate(self.placement)
        )
        rows = [["step", *map(str, range(self.devices))]]
        for step, row in enumerate(self.cells):
            rows.append([str(step), *(_IDLE if cell is None else str(cell) for cell in row)])
        return f"placement {places}\nmicrobatches {self.microbatches}\n{columns(rows)}"

    def to_json(self) -> dict[str, Any]:
        """The table as plain data; cells are text."""
        return {
            "placement": [list(devices) for devices in self.placement],
            "microbatches": self.microbatches,
            "cells": [[_IDLE if c is None else str(c) for c in row] for row in self.cells],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PipelineTable:
        """The table that `to_json` wrote.

        Raises:
          ValueError: data is missing, or is no table.
        """
        missing = {"placement", "microbatches", "cells"} - data.keys()
        if missing:
            raise ValueError(f"no table: {', '.join(sorted(missing))} is missing")
        return cls(
            tuple(tuple(int(d) for d in devices) for devices in data["placement"]),
            int(data["microbatches"]),
            tuple(tuple(parse_cell(text) for text in row) for row in data["cells"]),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table as JSON."""
        with open(path, "w") as file:
            json.dump(self.to_json(), file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PipelineTable:
        """Reads the table that `save` wrote.

        Raises:
          ValueError: the file is no table.
        """
        with open(path) as file:
            return cls.from_json(json.load(file))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as lines, each column as wide as its widest word."""
    widths = [max(map(len, words)) for words in zip(*rows, strict=True)]
    padded = (map(str.ljust, row, widths) for row in rows)
    return "\n".join("  ".join(words).rstrip() for words in padded)


def parse_table(text: str) -> PipelineTable:
    """A table from the text that printing it gives, which may have been edited.

    Empty lines do not matter, nor do the numbers of steps.

    Raises:
      ValueError: the text is no table; the message names the line.
    """
    lines = [words for line in text.splitlines() if (words := line.split())]
    heads = [words[0] for words in lines[:3]]
    if heads != ["placement", "microbatches", "step"]:
        raise ValueError(
            "no table: its first lines begin with 'placement', 'microbatches' and 'step', not with "
            f"{', '.join(heads) or 'nothing'}"
        )
    placement = []
    for number, word in enumerate(lines[0][1:]):
        segment, _, devices = word.partition("=")
        if segment != str(number) or not re.fullmatch(r"\d+(\+\d+)*", devices):
            raise ValueError(
                f"placement {word!r} should be '{number}=' and devices, as '{number}=0'"
            )
        placement.append(tuple(int(device) for device in devices.split("+")))
    if len(lines[1]) != 2 or not lines[1][1].isdigit():
        raise ValueError(f"line {' '.join(lines[1])!r}: expected 'microbatches' and a number")
    rows = []
    for words in lines[3:]:
        if len(words) != len(lines[2]):
            raise ValueError(
                f"line {' '.join(words)!r} has {len(words) - 1} cells, not one for each of "
                f"{len(lines[2]) - 1} devices"
            )
        rows.append(tuple(parse_cell(word) for word in words[1:]))
    return PipelineTable(tuple(placement), int(lines[1][1]), tuple(rows))
