"""What sets two descriptions apart."""

from __future__ import annotations

import json
from typing import Any


def first_difference(found: Any, asked: Any, name: str = "") -> str | None:
    """Names the first setting that two values of JSON differ in; None where they are equal."""
    if isinstance(found, dict) and isinstance(asked, dict):
        for key in [*asked, *(key for key in found if key not in asked)]:
            inner = f"{name}.{key}" if name else key
            different = first_difference(found.get(key), asked.get(key), inner)
            if different:
                return different
        return None
    return None if found == asked else f"{name} was {json.dumps(found)} and is {json.dumps(asked)}"
