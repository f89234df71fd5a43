"""Training steps to hold predictions of one device against, by name: a model, and its sizes."""

from __future__ import annotations

from typing import Any

from ....partitioning import models
from ....partitioning.models.example import Example
from . import heldout

_AGENT = {"features": 64, "hidden_sizes": (512, 512), "actions": 8}
_TRANSFORMER = {
    "batch": 8,
    "length": 1024,
    "vocabulary": 32768,
    "width": 1024,
    "num_heads": 16,
    "num_layers": 6,
    "optimizer": "adam",
    "clip": 1.0,
}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer-bf16": ("transformer", {**_TRANSFORMER, "dtype": "bfloat16"}),
    "transformer-f32": ("transformer", _TRANSFORMER),
    "transformer-f32-scan-remat": (
        "transformer",
        {**_TRANSFORMER, "scan": True, "checkpoint": "nothing"},
    ),
    "residual_net": (
        "residual_net",
        {"batch": 256, "size": 64, "width": 64, "groups": 8, "classes": 100},
    ),
    "dqn": ("dqn", {**_AGENT, "batch_size": 256}),
    "c51": ("c51", {**_AGENT, "batch_size": 256, "num_atoms": 51}),
    "impala": ("impala", {**_AGENT, "batch_size": 64, "rollout_length": 20}),
    "ppo": ("ppo", {**_AGENT, "num_envs": 256, "rollout_length": 64}),
    "sac": ("sac", {**_AGENT, "batch_size": 256}),
    "mpo": ("mpo", {**_AGENT, "batch_size": 256}),
    "r2d2": (
        "r2d2",
        {
            **_AGENT,
            "batch_size": 64,
            "core_size": 256,
            "sequence_length": 40,
            "sequence_period": 40,
            "burn_in": 10,
        },
    ),
    "unet": ("unet", {"batch": 64, "size": 64, "width": 64, "groups": 8}),
}
_TWELVE_HEADS = {
    "batch": 16,
    "length": 512,
    "vocabulary": 16384,
    "width": 768,
    "num_heads": 12,
    "num_layers": 8,
    "optimizer": "adam",
    "clip": 1.0,
    "dtype": "bfloat16",
}
#: Steps of other kinds and sizes than the presets were made from; the first tell most.
HELD_OUT: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer-12-heads": ("transformer", _TWELVE_HEADS),
    "transformer-12-heads-remat": ("transformer", {**_TWELVE_HEADS, "checkpoint": "nothing"}),
    "mixer": (
        "mixer",
        {"batch": 128, "width": 1024, "hidden": 4096, "length": 256, "classes": 1024, "blocks": 3},
    ),
    "residual_net-128": (
        "residual_net",
        {"batch": 256, "size": 64, "width": 128, "groups": 1, "classes": 1000},
    ),
    "lstm": ("lstm", {"batch": 256, "length": 128, "features": 256, "hidden": 1024}),
    "selective": (
        "selective",
        {"batch": 16, "width": 768, "hidden": 1536, "length": 512, "classes": 16384},
    ),
}


def make(model: str, sizes: dict[str, Any]) -> Example:
    """The step of that name; agents, and what they need installed, are loaded for theirs alone."""
    if model in models.CATALOGUE:
        return models.make(model, **sizes)
    if model in heldout.MODELS:
        return heldout.make(model, **sizes)
    from ....agents import examples

    return examples.make(model, **sizes)


def shrink(sizes: dict[str, Any]) -> dict[str, Any]:
    """The choices among a model's sizes; its numbers are then the small ones that it has itself."""
    return {name: value for name, value in sizes.items() if isinstance(value, str | bool)}
