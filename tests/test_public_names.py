"""A public name that has moved says where it is, however it is imported."""

import importlib
import re
import subprocess
import sys

import pytest

import troupe
from troupe import launch

IMPORTS = (
    "import troupe.agents.policies",
    "from troupe.agents.policies import epsilon_greedy",
    "from troupe.agents import policies",
)


@pytest.mark.parametrize("line", IMPORTS)
def test_an_import_of_a_module_that_moved_says_where_it_is(line):
    with pytest.raises(ModuleNotFoundError, match=re.escape("troupe.agents.acting.policies")):
        exec(line, {})


@pytest.mark.parametrize("name", troupe.MOVED)
def test_what_has_moved_is_there(name):
    assert importlib.util.find_spec(f"troupe.{troupe.MOVED[name]}") is not None
    with pytest.raises(ModuleNotFoundError, match=f"it is troupe.{troupe.MOVED[name]}"):
        importlib.import_module(f"troupe.{name}")


def test_other_names_are_not_found_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'troupe\.nothing'"):
        importlib.import_module("troupe.nothing")
    code = "import troupe, nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"No module named 'nothing'" in done.stderr


@pytest.mark.parametrize("name", ["launch", "make_program"])
def test_without_launchpad_what_needs_it_names_ray(name, monkeypatch):
    for module in ("launchpad", "reverb"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in [one for one in sys.modules if "engines.launchpad" in one]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"launch\.runner\(\"ray\"|troupe\[ray\]") as raised:
        getattr(launch, name)
    assert "\n" not in str(raised.value)


def test_windows_is_told_at_import():
    code = "import sys; sys.platform = 'win32'; import troupe"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode
    assert b"ImportError: troupe runs on Linux and macOS, and not on Windows" in done.stderr
