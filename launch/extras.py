"""Libraries that only some need."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import RequestError


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
