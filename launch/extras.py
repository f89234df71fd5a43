"""Libraries that only some need."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .errors import RequestError


def is_installed(*modules: str) -> bool:
    """True if all of these modules are found; imports none of them."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


def require(module: str, extra: str, purpose: str) -> Any:
    """A library of an extra.

    Args:
      module: its name.
      extra: of troupe, that installs it.
      purpose: what it is wanted for, as the beginning of a sentence.

    Raises:
      RequestError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RequestError(
            f"{purpose} needs {module}, which cannot be imported ({error}); install it with "
            f"pip install 'troupe[{extra}]'."
        ) from None
