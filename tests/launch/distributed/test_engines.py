"""Roles know no engine: nothing below one imports it, or the libraries that it is made of."""

import ast
import pathlib

import pytest

import troupe

HOUSE = pathlib.Path(troupe.__file__).parent / "launch" / "distributed"
BELOW = [
    *(path for room in ("roles", "gang", "supervision") for path in (HOUSE / room).rglob("*.py")),
    HOUSE / "addresses.py",
    HOUSE / "deployment.py",
]
LIBRARIES = {"launchpad", "courier", "reverb", "ray"}


def imported(path):
    """What a file imports, late imports included, as parts of names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (set(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield {*(node.module or "").split("."), *(alias.name for alias in node.names)}


@pytest.mark.parametrize("path", sorted(BELOW), ids=lambda path: str(path.relative_to(HOUSE)))
def test_roles_know_no_engine(path):
    for names in imported(path):
        assert not names & (LIBRARIES | {"engines"}), f"{path.name} imports {sorted(names)}"


def test_machine_code_is_behind_one_function():
    """`loopback` is asked for in one place only, and by its one public name."""
    users = [path for path in HOUSE.rglob("*.py") if {"loopback"} & set().union(*imported(path))]
    assert [path.name for path in users] == ["servers.py"]
    public = [
        node.name
        for node in ast.parse((HOUSE / "engines/launchpad/loopback.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert public == ["bound_to"]
