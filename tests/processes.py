"""Processes: code that needs a Python of its own, and what the kernel says of any."""

import pathlib
import subprocess
import sys
import textwrap


def python(script, *arguments, seconds=None):
    """What a script prints, which must end well, and within so many seconds."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def children(pid):
    """Process ids of the children of a process's first thread; none where it is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def state_and_parent(pid):
    """Its state, a letter, and the process id of its parent; OSError where it is gone."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    state, parent = stat.rpartition(")")[2].split()[:2]
    return state, int(parent)
