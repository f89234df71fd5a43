"""The names that `transformers` gives to the parameters of a decoder."""

from __future__ import annotations

from typing import NamedTuple

from ..decoder import DecoderConfig, shapes


class TensorSource(NamedTuple):
    """The tensors that the values of an array of parameters stand in."""

    shape: tuple[int, ...]
    """Of the array: [L, ...] where layers are stacked."""
    names: tuple[str, ...]
    """Of its tensors: one for each layer, or one."""
    is_stacked: bool
    is_transposed: bool
    """A matrix that stands as [features out, features in]."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of each tensor as it stands in a file."""
        inner = self.shape[1:] if self.is_stacked else self.shape
        return inner[::-1] if self.is_transposed else inner


LAYER = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
REST = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def sources(config: DecoderConfig) -> dict[tuple[str, ...], TensorSource]:
    """By the path of a parameter, where its values stand."""
    rest = shapes(config)
    layers = rest.pop("layers")
    found: dict[tuple[str, ...], TensorSource] = {
        (name,): TensorSource(shape, (f"{REST[name]}.weight",), False, name == "head")
        for name, shape in rest.items()
    }
    for name, shape in layers.items():
        names = tuple(f"model.layers.{i}.{LAYER[name]}.weight" for i in range(config.num_layers))
        found["layers", name] = TensorSource(shape, names, True, not name.endswith("norm"))
    return found
