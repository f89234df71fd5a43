"""Ctrl-C is answered in one line from the first import on, and on the way into the command."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, runpy, signal, sys

class Interrupting:
    '''Has the signal come while a module is looked for.'''

    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10**6):  # Python calls its handler between two instructions.
                pass

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Interrupting())
sys.argv = ["troupe", "train", "dqn", "--env", "CartPol-v1"]
runpy.run_module("troupe", run_name="__main__")
"""


def interrupted_at(name, handler="default_int_handler"):
    code = PROGRAM.format(name=name, handler=handler)
    environment = {**os.environ, "XLA_FLAGS": ""}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    "name",
    [
        "troupe.baselines",
        "troupe.baselines.settings",
        "troupe.launch",
        "numpy",
        "troupe.baselines.command.commands",
        "gymnasium",
    ],
)
def test_an_interrupt_while_a_module_is_imported_is_one_line(name):
    done = interrupted_at(name)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "troupe: interrupted.\n")


def test_a_signal_that_is_ignored_stays_so():
    """As in the background of a shell without job control."""
    done = interrupted_at("troupe.baselines", "SIG_IGN")
    assert done.returncode == 2
    assert "CartPole-v1" in done.stderr
