"""The cases of free searches, by name, and the schedules that people would write for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from ....agents import examples
from ....partitioning import models, parse_schedule
from . import heldout

MESHES = ("data=8", "data=4,model=2", "data=2,model=2,expert=2")
DEVICES = ("h200", "tpu-v5e")
LARGE = {
    "width": 2048,
    "num_heads": 16,
    "length": 1024,
    "vocabulary": 32000,
    "dtype": "bfloat16",
    "optimizer": "adam",
    "clip": 1.0,
}
_BATCH = {"batch_size": 4096, "features": 256, "hidden_sizes": (2048, 2048)}
_ROLLOUTS = {"features": 256, "hidden_sizes": (2048, 2048)}
#: Sizes at which a step is more than a test: every model, and every agent's update.
LARGER: dict[str, dict[str, Any]] = {
    "transformer": {**LARGE, "num_layers": 2, "batch": 16},
    "mlp": {"batch": 512, "num_layers": 8, "width": 2048, "hidden": 8192, "optimizer": "adam"},
    "residual_net": {"batch": 256, "size": 32, "width": 128, "classes": 64},
    "unet": {"batch": 128, "size": 64, "width": 64},
    "graph_net": {"graphs": 512, "nodes": 32, "edges": 128, "features": 256, "hidden": 1024},
    "lstm": {"batch": 512, "length": 16, "features": 512, "hidden": 2048},
    "gru": {"batch": 512, "length": 16, "features": 512, "hidden": 2048},
    "vtrace": {"batch": 4096, "length": 64, "features": 256, "hidden": 2048},
    "experts": {"batch": 64, "length": 128, "width": 1024, "hidden": 4096, "experts": 8},
    **dict.fromkeys(("bc", "cql", "crr", "dqn", "iql", "qrdqn", "sac", "td3"), _BATCH),
    **{name: {**_BATCH, "num_atoms": 51} for name in ("c51", "d4pg", "rainbow")},
    "impala": {**_ROLLOUTS, "batch_size": 256, "rollout_length": 16},
    "ppo": {**_ROLLOUTS, "num_envs": 512, "rollout_length": 32},
    "grpo": {
        **{"batch_size": 64, "num_envs": 64, "features": 64, "actions": 16},
        **{"width": 1024, "num_layers": 4, "num_heads": 8},
    },
    "mpo": {**_BATCH, "batch_size": 1024, "num_samples": 16},
    "muzero": {**_BATCH, "batch_size": 1024, "state_size": 512},
    "r2d2": {"batch_size": 512, "features": 256, "hidden_sizes": (1024,), "core_size": 1024},
    **heldout.LARGER,
}


def make(name: str, **sizes: Any) -> models.Example:
    """The model, the agent's update or the held-out model of that name."""
    return (heldout.make if name in heldout.MODELS else examples.make)(name, **sizes)


@dataclasses.dataclass(frozen=True)
class Case:
    """One free search."""

    model: str
    larger: bool
    mesh: str
    device: str

    @property
    def name(self) -> str:
        """All of it in a word, "mlp/larger/data=8/h200"."""
        return f"{self.model}/{'larger' if self.larger else 'small'}/{self.mesh}/{self.device}"

    def example(self) -> models.Example:
        return make(self.model, **(LARGER[self.model] if self.larger else {}))


def cases(names: Collection[str]) -> list[Case]:
    """These steps in two sizes, on every mesh and device."""
    return [
        Case(model, larger, mesh, device)
        for model in names
        for larger in (False, True)
        for mesh in MESHES
        for device in DEVICES
    ]


#: Every model and every agent's own update.
LISTED = tuple(cases((*examples.NAMES, *examples.FURTHER)))
#: Models that nothing was made with.
HELD_OUT = tuple(cases(tuple(heldout.MODELS)))


def schedules(example: models.Example, axes: Collection[str]) -> list[str]:
    """No split, what an example lists and a mesh allows, and that with the batch split over every
    axis that it leaves, as a person would who has more axes than uses for them."""
    found = [""]
    for schedule in example.schedules:
        used = {tactic.axis for tactic in parse_schedule(schedule)}
        if used <= set(axes):
            found.append(schedule)
            left = [axis for axis in axes if axis not in used]
            if left and "batch:data" in schedule:
                found.append(",".join([*(f"batch:{axis}" for axis in left), schedule]))
    return found
