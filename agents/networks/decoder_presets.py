"""Sizes of decoders by name: published ones, and smaller ones to make from nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from .decoder import DecoderConfig, RotaryScaling


def _llama(factor: float, **sizes: Any) -> DecoderConfig:
    """Of Llama 3.1 and 3.2; `factor` is that of its rotary positions."""
    return DecoderConfig(
        vocabulary=128_256,
        num_kv_heads=8,
        rope_theta=500_000.0,
        norm_epsilon=1e-5,
        rope_scaling=RotaryScaling(factor),
        compute_dtype="bfloat16",
        context=131_072,
        **sizes,
    )


def _qwen3(**sizes: Any) -> DecoderConfig:
    return DecoderConfig(
        vocabulary=151_936,
        num_kv_heads=8,
        head_width=128,
        rope_theta=1_000_000.0,
        qk_norm=True,
        compute_dtype="bfloat16",
        context=40_960,
        **sizes,
    )


#: By name; those without a family are made from nothing, and are of about as many parameters.
PRESETS: dict[str, DecoderConfig] = {
    "tiny": DecoderConfig(
        vocabulary=128,
        width=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_width=16,
        hidden=176,
    ),
    "10m": DecoderConfig(
        vocabulary=512,
        width=256,
        num_layers=12,
        num_heads=8,
        num_kv_heads=4,
        head_width=32,
        hidden=832,
    ),
    "124m": DecoderConfig(
        vocabulary=50_304,
        width=768,
        num_layers=12,
        num_heads=12,
        num_kv_heads=12,
        head_width=64,
        hidden=2048,
        compute_dtype="bfloat16",
    ),
    "1.3b": DecoderConfig(
        vocabulary=50_304,
        width=2048,
        num_layers=24,
        num_heads=16,
        num_kv_heads=8,
        head_width=128,
        hidden=6144,
        compute_dtype="bfloat16",
    ),
    # Llama 3.2, https://huggingface.co/meta-llama/Llama-3.2-1B and -3B.
    "llama-1b": _llama(32.0, width=2048, num_layers=16, num_heads=32, head_width=64, hidden=8192),
    "llama-3b": _llama(32.0, width=3072, num_layers=28, num_heads=24, head_width=128, hidden=8192),
    # Llama 3.1, https://arxiv.org/abs/2407.21783, table 3.
    "llama-8b": _llama(
        8.0, width=4096, num_layers=32, num_heads=32, head_width=128, hidden=14_336, tied=False
    ),
    "llama-70b": _llama(
        8.0, width=8192, num_layers=80, num_heads=64, head_width=128, hidden=28_672, tied=False
    ),
    # Qwen3, https://arxiv.org/abs/2505.09388, table 1.
    "qwen3-0.6b": _qwen3(width=1024, num_layers=28, num_heads=16, hidden=3072),
    "qwen3-1.7b": _qwen3(width=2048, num_layers=28, num_heads=16, hidden=6144),
    "qwen3-4b": _qwen3(width=2560, num_layers=36, num_heads=32, hidden=9728),
    "qwen3-8b": _qwen3(width=4096, num_layers=36, num_heads=32, hidden=12_288, tied=False),
    "qwen3-14b": _qwen3(width=5120, num_layers=40, num_heads=40, hidden=17_408, tied=False),
    "qwen3-32b": _qwen3(width=5120, num_layers=64, num_heads=64, hidden=25_600, tied=False),
}


def preset(name: str, **changes: Any) -> DecoderConfig:
    """The config of that name, with fields changed: `preset("tiny", vocabulary=40)`.

    Raises:
      ValueError: where there is none of that name.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return dataclasses.replace(PRESETS[name], **changes)
