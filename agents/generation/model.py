"""The language model of an agent, by fields of its config."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from ..bounds import AllBounds
from ..configs import Config
from ..networks.decoder import Decoder, DecoderConfig


@dataclasses.dataclass(frozen=True)
class DecoderFields(Config):
    """Of the language model: its own sizes, those of a preset, or a folder of weights."""

    weights: str | None = None
    """Folder of config.json and safetensors, as transformers writes them, whose sizes and weights
    learning begins with; None: random weights."""
    preset: str | None = None
    """Name of the sizes of a published model, such as llama-8b, in place of those below; None:
    those below."""
    width: int = 128
    """Features of a token between layers."""
    num_layers: int = 4
    """Layers of the decoder."""
    num_heads: int = 4
    """Heads of queries; divides width."""
    num_kv_heads: int | None = None
    """Heads of keys and values, which divide num_heads; None: as many."""
    hidden: int | None = None
    """Features inside an MLP; None: 4 width."""
    tied: bool = True
    """Logits are products with the embedding, instead of with a matrix of their own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations and of the cache; parameters, logits and optimizer stay float32."""
    rematerialize: bool = False
    """The backward pass computes every layer anew, which takes time and saves memory."""

    bounds: ClassVar[AllBounds] = {
        "width": (2, 65_536),
        "num_layers": (1, 1_000),
        "num_heads": (1, 1_024),
        "num_kv_heads": (1, 1_024),
        "hidden": (1, 1_000_000),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None and self.preset is not None:
            raise ValueError(
                f"weights is {self.weights!r} and preset is {self.preset!r}; a folder has sizes of "
                "its own: give one of the two."
            )
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width is {self.width} and num_heads is {self.num_heads}; width must be a "
                "multiple of 2 num_heads, as positions turn pairs of features of a head."
            )
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise ValueError(
                f"num_heads is {self.num_heads} and num_kv_heads is {self.num_kv_heads}; "
                "num_kv_heads must divide num_heads."
            )


def make_decoder(config: DecoderFields, vocabulary: int) -> Decoder:
    """A decoder of the config's sizes.

    Args:
      config: of the agent.
      vocabulary: tokens of the tokenizer.
    """
    sizes = DecoderConfig(
        vocabulary=vocabulary,
        width=config.width,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads or config.num_heads,
        head_width=config.width // config.num_heads,
        hidden=config.hidden or 4 * config.width,
        tied=config.tied,
        compute_dtype=config.dtype,
        rematerialize=config.rematerialize,
    )
    return Decoder(sizes)
