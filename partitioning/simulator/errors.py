"""Errors of predicted times, by what they were held against (docs/simulator.md)."""

from __future__ import annotations

import dataclasses

from .device import Device
from .presets import told_by

#: Steps of less are bound by what kernels and calls cost besides their work.
_SMALL_SECONDS = 0.01


@dataclasses.dataclass(frozen=True)
class TimeError:
    """The documented error of predicted times on a device.

    Attributes:
      large: as a share of the time, of steps of 10 ms and more.
      small: of shorter ones.
      source: what was measured, as the end of a sentence.
      measured: False if that was another device; then the error is at least so large.
    """

    large: float
    small: float
    source: str
    measured: bool = True

    def of(self, seconds: float) -> float:
        """The error of a prediction of so many seconds, as a share of it."""
        return self.small if seconds < _SMALL_SECONDS else self.large

    def beside(self, seconds: float) -> str:
        """Returns the text behind a prediction of seconds: " +-10%", or "" if unmeasured."""
        return f" +-{self.of(seconds):.0%}" if self.measured else ""

    def alike(self, seconds: float, other: float) -> bool:
        """True if two predictions differ by less than the error."""
        return abs(seconds - other) < self.of(max(seconds, other)) * max(seconds, other)

    def __str__(self) -> str:
        return f"+-{self.large:.0%} (under 10 ms +-{self.small:.0%}){self.source}"


_H100 = TimeError(0.1, 0.3, ", by eight steps")
#: By the name of a preset.
_MEASURED = {"h100-sxm": _H100}
#: Of calibrations, by the kind of the device: median errors of three models are 8 to 45 %.
_CALIBRATED = {"cpu": TimeError(0.45, 0.45, ", by three calibrated models")}


def error_of(device: Device) -> TimeError:
    """The documented error of times predicted for a preset, or for a calibrated device."""
    is_calibrated = "all" in device.sources
    found = (
        _CALIBRATED.get(device.kind) if is_calibrated else _MEASURED.get(told_by(device.name) or "")
    )
    return found or dataclasses.replace(
        _H100, source=f" as of an H100: none was measured on {device.name}", measured=False
    )
