"""The replay in the memory of a device, as pure functions that a compiled program holds."""

from .device_replay import DeviceReplay, ReplayState

__all__ = ["DeviceReplay", "ReplayState"]
