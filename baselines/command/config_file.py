"""Settings of an agent from a file: `--config-file FILE`."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

from ...launch.errors import RequestError


def read(file: str) -> dict[str, Any]:
    """The fields that a file sets: a JSON object, or a TOML table where its name ends in .toml.

    The `config.json` of a run is one too: its agent's config is taken.

    Raises:
      RequestError: if it cannot be read, or is no such file.
    """
    path = pathlib.Path(file)
    try:
        text = path.read_text()
        values = _toml(path, text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise RequestError(f"cannot read the config file {file}: {error.strerror}.") from error
    except RequestError:
        raise
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        reason = " ".join(str(error).split())
        raise RequestError(f"the config file {file} is no {kind}: {reason}.") from error
    if not isinstance(values, dict):
        raise RequestError(
            f"the config file {file} holds no fields and their values, but {text.strip()[:40]!r}."
        )
    if "agent" in values and isinstance(values.get("config"), dict):
        values = values["config"]
    return values


def _toml(path: pathlib.Path, text: str) -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name).loads(text)
        except ModuleNotFoundError:
            continue
    raise RequestError(
        f"reading {path} needs Python 3.11 or `pip install tomli`; or write it as JSON."
    )
