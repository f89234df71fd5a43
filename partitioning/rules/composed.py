"""Primitives that are written out in others before anything is decided: sparse products.

They have no rules and no traits of their own: those of what they consist of hold.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

#: The library of sparse matrices in coordinates; its lowerings trace its functions `_NAME_impl`.
_SPARSE = "jax.experimental.sparse.bcoo"


def composition(name: str) -> Callable[..., Any] | None:
    """The function that a primitive lowers to, of its operands and with its params by name.

    None where it is no such primitive, or jax keeps the function elsewhere.
    """
    if not name.startswith("bcoo_"):
        return None
    return getattr(sys.modules.get(_SPARSE), f"_{name}_impl", None)
