"""The errors of environments: one family, with messages of one line.

A caller that wants to tell a wrong choice from a failure while running catches
`InvalidRewardError`, `InvalidObservationError`, `EnvironmentExitError` and `LostSimulatorError`
(the environment misbehaved) apart from their siblings (the user chose wrongly).
"""

from __future__ import annotations


class EnvironmentFault(ValueError):
    """Base of every error that this package raises on purpose. The message is one line."""


class UnknownEnvironmentError(EnvironmentFault):
    """No environment has this id; the message lists the nearest ones that exist."""


class MissingExtraError(EnvironmentFault):
    """The environment exists, but a package that it needs is not installed."""


class InvalidOptionError(EnvironmentFault):
    """An argument of `make` or of a wrapper has a value that it cannot have."""


class UnsupportedSpaceError(EnvironmentFault):
    """A space has no counterpart among the specs (text, graphs, sequences)."""


class InvalidActionError(EnvironmentFault):
    """An action does not fit the action spec."""


class InvalidRewardError(EnvironmentFault):
    """The environment returned a reward that is not a finite number."""


class InvalidObservationError(EnvironmentFault):
    """The environment returned an observation with a number that is not finite."""


class EnvironmentExitError(EnvironmentFault):
    """The environment called `sys.exit`."""


class LostSimulatorError(EnvironmentFault):
    """A simulator that is served elsewhere cannot go on, and no other was found in time."""


class RenderError(EnvironmentFault):
    """The environment could not draw its state."""
