"""Training steps to plan, test and measure with: `models.make("transformer", num_layers=4)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from . import convolution, experts, graph, mlp, recurrent, returns, transformer
from .example import Example as Example
from .values import mid_training as mid_training

#: Every example, by name; each takes the fields of its config.
CATALOGUE: dict[str, Callable[..., Example]] = {
    "mlp": mlp.make,
    "transformer": transformer.make,
    "residual_net": convolution.make_residual_net,
    "unet": convolution.make_unet,
    "graph_net": graph.make,
    "lstm": recurrent.make_lstm,
    "gru": recurrent.make_gru,
    "vtrace": returns.make_vtrace,
    "experts": experts.make,
}


def make(name: str, **sizes: Any) -> Example:
    """The example of that name, with the given fields of its config.

    Raises:
      ValueError: for a name or a field that there is not, listing what there is.
    """
    if name not in CATALOGUE:
        raise ValueError(f"no example {name!r}; there are {', '.join(CATALOGUE)}")
    try:
        return CATALOGUE[name](**sizes)
    except TypeError as error:
        fields = [field.name for field in dataclasses.fields(CATALOGUE[name]().config)]
        unknown = sorted(set(sizes) - set(fields))
        if not unknown:
            raise
        raise ValueError(
            f"example {name!r} has no {', '.join(unknown)}; its fields are {', '.join(fields)}"
        ) from error
