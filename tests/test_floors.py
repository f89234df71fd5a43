"""The floors of the house: nothing imports upward, and inside the package imports are relative."""

import ast
import pathlib

import pytest

import troupe

ROOT = pathlib.Path(troupe.__file__).parent
BELOW = {
    "environments": {"environments"},
    "partitioning": {"partitioning"},
    "agents": {"environments", "partitioning", "agents"},
    "launch": {"environments", "partitioning", "agents", "launch"},
    "baselines": {"environments", "partitioning", "agents", "launch", "baselines"},
}
# The partitioner stands alone: what it may import besides itself.
ALONE = {"jax", "jaxlib", "numpy", "ml_dtypes", "matplotlib", "rich"}
FILES = [path for floor in BELOW for path in sorted((ROOT / floor).rglob("*.py"))]


def imported(path):
    """Every name that a file imports, absolute: `troupe.agents.builder`, `jax.numpy`."""
    package = ("troupe", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_all_floors_are_there():
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == {*BELOW}
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_upward(path):
    floor = path.relative_to(ROOT).parts[0]
    for name in imported(path):
        first, _, rest = name.partition(".")
        if first == "troupe":
            above = rest.partition(".")[0]
            # What stands in the root itself, such as the version, is for all.
            assert above in BELOW[floor] or above not in BELOW, f"{floor} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_inside_the_package_are_relative(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "troupe" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] not in {"troupe", *BELOW}, f"from {node.module}"


def test_the_partitioner_stands_alone():
    import sys

    allowed = ALONE | set(sys.stdlib_module_names) | {"troupe"}
    for path in FILES:
        if path.relative_to(ROOT).parts[0] == "partitioning":
            others = {name.partition(".")[0] for name in imported(path)} - allowed
            assert not others, f"{path} imports {others}"
