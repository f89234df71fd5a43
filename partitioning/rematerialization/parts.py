"""`CoShard`: which layers run in parts, in turn on the same device."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CoShard:
    """Runs layers in parts, in turn on the same device, each recomputed in the backward pass.

    Matrices are taken in pairs, as Megatron does for devices: attention is divided by its heads, an
    MLP by its hidden features. A device holds the activations of one part at a time, and computes
    the forward pass of these layers twice (co-shard of SuperScaler,
    https://arxiv.org/abs/2301.08984).

    Attributes:
      parts: into how many parts each layer is divided.
      paths: globs of the matrices, such as "state/params/**/attention/**"; of each pair the first
        one is named.
    """

    parts: int
    paths: tuple[str, ...] = ("**",)

    def __post_init__(self) -> None:
        paths = (self.paths,) if isinstance(self.paths, str) else tuple(self.paths)
        object.__setattr__(self, "paths", paths)
        if isinstance(self.parts, bool) or not isinstance(self.parts, int) or self.parts < 2:
            raise ValueError(f"CoShard(parts={self.parts!r}): a layer has at least 2 parts")
