"""`config.json` of a folder as a `DecoderConfig`, and back."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from ..decoder import DecoderConfig, RotaryScaling

FILE = "config.json"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
#: What a decoder has not, with the one value that it is without.
_WITHOUT = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "partial_rotary_factor": 1.0,
}


def read_config(folder: str | os.PathLike[str]) -> DecoderConfig:
    """The sizes of the decoder of a folder; it computes in bfloat16 where the folder says so.

    Raises:
      FileNotFoundError: where there is no `config.json`.
      ValueError: where the architecture is none of `ARCHITECTURES`, or has what these have not.
    """
    path = pathlib.Path(folder) / FILE
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing; a folder of weights has it beside its safetensors"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    family = held.get("model_type")
    if family not in ARCHITECTURES:
        named = ", ".join(held.get("architectures") or [str(family)])
        raise ValueError(f"{path} is of {named}; decoders are {', '.join(ARCHITECTURES.values())}")
    for name, value in _WITHOUT.items():
        if held.get(name, value) != value:
            raise ValueError(f"{path}: {name}={held[name]!r}; decoders have only {value!r}")
    try:
        return _from_json(held, family, path)
    except KeyError as error:
        raise ValueError(f"{path} has no {error.args[0]}") from None


def _from_json(held: dict[str, Any], family: str, path: pathlib.Path) -> DecoderConfig:
    num_heads = held["num_attention_heads"]
    rope = held.get("rope_parameters") or held.get("rope_scaling") or {}
    # The first folders of the Llama family do not name it.
    head_width = held.get("head_dim") or held["hidden_size"] // num_heads
    return DecoderConfig(
        vocabulary=held["vocab_size"],
        width=held["hidden_size"],
        num_layers=held["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=held.get("num_key_value_heads") or num_heads,
        head_width=head_width,
        hidden=held["intermediate_size"],
        rope_theta=float(rope.get("rope_theta") or held.get("rope_theta", 10_000.0)),
        norm_epsilon=held.get("rms_norm_eps", 1e-6),
        tied=held.get("tie_word_embeddings", False),
        qk_norm=family == "qwen3",
        compute_dtype="bfloat16" if _dtype(held) == "bfloat16" else "float32",
        rope_scaling=_scaling(rope, path),
        context=held.get("max_position_embeddings"),
    )


def _dtype(held: dict[str, Any]) -> str | None:
    """Versions before 5 of `transformers` call it `torch_dtype`."""
    return held.get("dtype") or held.get("torch_dtype")


def _scaling(rope: dict[str, Any], path: pathlib.Path) -> RotaryScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"{path}: rope_type={kind!r}; decoders have 'default' or 'llama3'")
    return RotaryScaling(
        factor=rope["factor"],
        low_frequency=rope["low_freq_factor"],
        high_frequency=rope["high_freq_factor"],
        first_context=rope["original_max_position_embeddings"],
    )


def to_json(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The content of `config.json` for a decoder with parameters of a dtype.

    Rotary positions are said twice, as versions 4 and 5 of `transformers` look for them.
    """
    family = "qwen3" if config.qk_norm else "llama"
    rope: dict[str, Any] = {"rope_type": "default"}
    if (scaling := config.rope_scaling) is not None:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
            "original_max_position_embeddings": scaling.first_context,
        }
    written = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.hidden,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied,
        "torch_dtype": dtype,
    }
    if config.context is not None:
        written["max_position_embeddings"] = config.context
    return written
