"""The command line: how an answer or a failure is told.

Nothing that takes long is imported before the arguments are read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from ...launch import signals
from ...launch.errors import Interrupted, RequestError, RunError
from ..tuned import Tuned
from . import commands, config_file, other_names
from .parser import Commands, take_overrides


def main(
    argv: Sequence[str] | None = None,
    settings: Sequence[Tuned] = (),
    begin: Callable[[], object] = lambda: None,
) -> int:
    """Runs a command.

    Args:
      argv: arguments; None: those of the process.
      settings: tuned settings, which `train` starts from and `list` lists.
      begin: called once a KeyboardInterrupt is answered here.

    Returns:
      The exit code: 0, 1 if a run failed, 2 if the request is invalid, 128 and the number
      of the signal that ended it (130 for Ctrl-C).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    if argv is None:
        _open_standard_streams()
    with signals.prompt():
        return _answer(arguments, settings, debug, begin)


def _answer(
    arguments: list[str],
    settings: Sequence[Tuned],
    debug: bool,
    begin: Callable[[], object],
) -> int:
    try:
        begin()
        overrides = take_overrides(arguments)
        environment = take_overrides(arguments, "--env.")
        known = Commands(arguments)
        for command in commands.ALL:
            command.register(known)
        try:
            options = known.parser.parse_args(arguments)
        except RequestError as error:
            raise RequestError(f"{error}{other_names.hint(arguments, str(error))}") from None
        options.overrides, options.environment = overrides, environment
        flags = [] if hasattr(options, "agent") else [f"--config.{name}" for name in overrides]
        flags += [] if hasattr(options, "env") else [f"--env.{name}" for name in environment]
        if flags:
            raise RequestError(f"{flags[0]} belongs to a new run: `troupe train AGENT`.")
        if getattr(options, "config_file", None) is not None:
            options.overrides = {**config_file.read(options.config_file), **overrides}
        return options.command(options, settings)
    except Interrupted as stop:
        return _say(str(stop), 128 + stop.signal_number, debug)
    except KeyboardInterrupt:
        return _say("interrupted.", 128 + signal.SIGINT, debug)
    except RunError as error:
        return _say(str(error), 1, debug)
    except (RequestError, ValueError) as error:
        return _say(str(error), 2, debug)
    except BrokenPipeError:  # Whoever read the output has left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        hint = "" if debug else " (--debug shows where)"
        return _say(f"{type(error).__name__}: {error}{hint}", 1, debug)


def _open_standard_streams() -> None:
    """Opens missing standard streams. Otherwise the first file that this process opens would
    become its standard output, and others would write into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the least number that is free.


def _say(message: str, code: int, debug: bool) -> int:
    with contextlib.suppress(OSError):  # Nobody reads it, or its disk is full.
        if debug:
            traceback.print_exc()
        print(f"troupe: {' '.join(message.split())}", file=sys.stderr)
    return code
