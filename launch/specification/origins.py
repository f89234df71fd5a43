"""Folders of modules of the user's own, kept so that a run finds them again.

An agent, an environment, or a function that a field of a config names, as MODULE:NAME, is looked
for in the current directory first, as `python -m` does. A run keeps the folder in its
`config.json`, and is resumed and judged with the module of that folder, wherever the one who does
it stands.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib
import sys
import sysconfig
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RequestError

if TYPE_CHECKING:
    from ...agents.builder import Builder

_INSTALLED = {
    pathlib.Path(path).resolve()
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
}


def module_of(name: str) -> str | None:
    """The module of a name MODULE:NAME or KIND:MODULE:NAME; None where it has none.

    Wrappers may stand before it, and options after a question mark behind it.
    """
    name = name.partition("?")[0]
    return name.rpartition("+")[2].rpartition(":")[0].rpartition(":")[2] or None


def names_in(config: Mapping[str, Any]) -> list[str]:
    """Returns the texts of a config that may be a MODULE:NAME."""
    return [value for value in config.values() if isinstance(value, str) and ":" in value]


def reach(name: str, folders: Mapping[str, str]) -> None:
    """Has the module of a name MODULE:NAME found, if it has one.

    Args:
      name: of an agent, an environment or a function.
      folders: where modules were found before; any other may be in the current directory.
    """
    module = module_of(name)
    if module is None:
        return
    before = folders.get(module)
    folder = before if before is not None and os.path.isdir(before) else os.getcwd()
    if sys.path[:1] != [folder] and module.partition(".")[0] not in sys.modules:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # The module may have been written a moment ago.


def folders_of(*names: str) -> dict[str, str]:
    """The folders in which the modules of these names are found, by module.

    Those of installed packages are left out: they are found anyway.
    """
    known = {pathlib.Path(entry or os.getcwd()).resolve() for entry in sys.path} - _INSTALLED
    found = {}
    for module in filter(None, map(module_of, names)):
        with contextlib.suppress(ImportError, ValueError, IndexError):
            spec = importlib.util.find_spec(module)
            if spec is None or spec.origin is None:
                continue
            path = pathlib.Path(spec.origin).resolve()
            folder = path.parents[module.count(".") + (path.name == "__init__.py")]
            if folder in known:
                found[module] = str(folder)
    return found


def find_builder(agent: str, folders: Mapping[str, str] | None = None) -> type[Builder]:
    """The builder class of an agent of the catalogue, or of a module of one's own.

    Args:
      agent: its name, or MODULE:CLASS.
      folders: where modules were found before, as `folders_of` gives them.

    Raises:
      RequestError: where there is none, saying where it was looked for.
    """
    from ...agents import find_builder

    folders = folders or {}
    reach(agent, folders)
    try:
        return find_builder(agent)
    except ValueError as error:
        before = folders.get(module_of(agent) or "")
        if before is None:
            raise RequestError(str(error)) from error
        raise RequestError(
            f"{error} The run was begun with it in {before}: put it back there, or go on from the "
            "folder where it is now."
        ) from error
