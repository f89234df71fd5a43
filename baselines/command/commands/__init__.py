"""The commands of `troupe`, one a file.

Each file has `register`, which adds the command and its flags, and what is called with the options.
"""

from __future__ import annotations

from . import (
    check,
    compare,
    deploy,
    evaluate,
    export,
    graph,
    list,
    plan,
    plot,
    record,
    resume,
    sweep,
    train,
    weights,
)

ALL = (
    train,
    resume,
    evaluate,
    export,
    record,
    weights,
    plot,
    check,
    plan,
    compare,
    sweep,
    graph,
    deploy,
    list,
)
"""In the order in which the help lists them."""
