"""Docstrings and tables read from the source: nobody waits for jax to see what there is."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).parents[2]


class Definition:
    """A class or a function of the package, as its source has it.

    Attributes:
      summary: the first sentence of its docstring.
    """

    def __init__(self, module: str, node: ast.ClassDef | ast.FunctionDef):
        self._module, self._node = module, node
        text = " ".join((ast.get_docstring(node) or "").split())
        self.summary = text.partition(". ")[0].removesuffix(".")

    def attribute(self, name: str) -> Definition:
        """A method, or the class that is an attribute."""
        for one in self._node.body:
            if isinstance(one, ast.FunctionDef) and one.name == name:
                return Definition(self._module, one)
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == name:
                return find(self._module, ast.unparse(one.value))
        raise LookupError(f"{self._node.name} of {self._module} has no {name}")


def find(module: str, name: str) -> Definition:
    """The class that a module, named from the package's root, defines or imports.

    Raises:
      LookupError: if it does neither.
    """
    path, package = _ROOT.joinpath(*module.split(".")), module
    if not path.is_dir():
        path, package = path.with_suffix(".py"), module.rpartition(".")[0]
    for node in _body(path / "__init__.py" if path.is_dir() else path):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Definition(module, node)
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    parts = package.split(".")
                    base = parts[: len(parts) + 1 - node.level]
                    return find(".".join([*base, node.module or ""]).rstrip("."), alias.name)
    raise LookupError(f"{module} has no class {name}")


def table(file: str, name: str) -> Iterator[tuple[str, str]]:
    """Keys and values, as they are written, of the dict that a file assigns to a name."""
    for node in _body(_ROOT / file):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == name:
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    assert isinstance(key, ast.Constant)
                    yield str(key.value), ast.unparse(value).strip("'\"")


@functools.cache
def _body(path: pathlib.Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body
