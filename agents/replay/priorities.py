"""Drawing items in proportion to their priorities."""

from __future__ import annotations

import numpy as np

_ALMOST_ONE = 1.0 - 2.0**-30


class Priorities:
    """Weights of slots, and draws in proportion to them.

    The slots lie in blocks of W. A draw first finds its block in the cumulative sums of the
    blocks, then its slot in the block. For the second search the cumulative sums inside each block
    are scaled to end at 1 and raised by the number of the block: the whole array rises, and one
    `np.searchsorted` serves all draws of a batch. A changed weight touches its block and nothing
    else. All sums are float64 and made anew from the weights, so that they never drift.
    """

    def __init__(self, capacity: int) -> None:
        """All weights are 0."""
        # Of a step that draws and updates 64 slots, 64 W operations go into blocks and capacity / W
        # into the sums of the blocks.
        width = int(2 ** np.clip(np.round(np.log2(capacity / 192.0) / 2.0), 3, 8))
        blocks = -(-capacity // width)
        self._width = width
        self._weights = np.zeros((blocks, width))
        self._flat = self._weights.reshape(-1)
        self._sums = np.zeros(blocks)
        self._cumulative = np.zeros(blocks)
        self._rising = np.repeat(np.arange(blocks, dtype=np.float64), width).reshape(blocks, width)
        self._search = self._rising.reshape(-1)
        self._stale: list[np.ndarray] = []
        self._stale_blocks: set[int] = set()

    def set_one(self, slot: int, weight: float) -> None:
        """Sets the weight of one slot."""
        self._flat[slot] = weight
        self._stale_blocks.add(slot // self._width)

    def set(self, slots: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets the weights of slots, [M]; of one slot named twice, the last weight counts."""
        self._flat[slots] = weights
        self._stale.append(slots // self._width)

    def get(self, slots: np.ndarray) -> np.ndarray:
        """The weights of slots."""
        return self._flat[slots]

    def draw(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws a slot for every number of [0, 1).

        Returns:
            The slots, int64, and the probability of each, float64, both shaped as `uniforms`.

        Raises:
            ValueError: If all weights are 0.
        """
        self._refresh()
        total = self._cumulative[-1]
        if not total > 0.0:
            raise ValueError("all priorities are 0, so that nothing can be drawn.")
        targets = uniforms * total
        blocks = self._cumulative.searchsorted(targets, side="right")
        # Rounding may carry the largest targets to the total itself.
        np.minimum(blocks, self._last, out=blocks)
        targets -= self._cumulative.take(blocks)
        sums = self._sums.take(blocks)
        targets /= sums
        targets += 1.0  # Until here it was counted from the block's end.
        np.clip(targets, 0.0, _ALMOST_ONE, out=targets)
        targets += blocks
        slots = self._search.searchsorted(targets, side="right")
        return slots, self._flat.take(slots) / total

    def save(self, size: int) -> np.ndarray:
        """The weights of the first `size` slots, float64, without a copy."""
        return self._flat[:size]

    def restore(self, weights: np.ndarray) -> None:
        """Takes the weights of the first slots; all others are 0."""
        self._flat[: len(weights)] = weights
        self._flat[len(weights) :] = 0.0
        self._stale.append(np.arange(len(self._sums)))

    def _refresh(self) -> None:
        """Makes the sums of all blocks whose weights changed."""
        if self._stale_blocks:
            self._stale.append(np.fromiter(self._stale_blocks, np.int64))
            self._stale_blocks.clear()
        if not self._stale:
            return
        stale = self._stale[0] if len(self._stale) == 1 else np.concatenate(self._stale)
        self._stale.clear()
        # A block named twice is made twice, which costs less than finding that out.
        inside = self._weights.take(stale, axis=0)
        np.cumsum(inside, axis=1, out=inside)
        sums = inside[:, -1].copy()
        self._sums[stale] = sums
        sums[sums == 0.0] = 1.0
        inside /= sums[:, np.newaxis]
        inside += stale[:, np.newaxis]
        self._rising[stale] = inside
        np.cumsum(self._sums, out=self._cumulative)
        self._last = int(self._cumulative.searchsorted(self._cumulative[-1]))
