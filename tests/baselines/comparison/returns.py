"""Returns of made-up runs, in the range from 0 to 1, for simulated comparisons.

Each shape draws samples [2, ..., n], a reference and another whose mean is lower by `gap`.
"""

import numpy as np

MARGIN = 0.1


def _shifted(noise):
    """Noise of one shape at both scales, `spread` margins wide."""

    def draw(random, size, gap, spread):
        drawn = 1.0 + spread * MARGIN * noise(random, (2, *size))
        drawn[1] -= gap
        return drawn

    return draw


def _failing(loss, share):
    """Runs at 1 that fail and lose so much: a share of them, and more at the other scale."""

    def draw(random, size, gap, spread):
        shares = np.array([share, share + gap / loss]).reshape(2, *[1] * len(size))
        return 1.0 - loss * (random.random((2, *size)) < shares)

    return draw


SHAPES = {
    "normal": _shifted(lambda random, size: random.normal(size=size)),
    "heavy tails": _shifted(lambda random, size: random.standard_t(3, size=size)),
    "skewed": _shifted(lambda random, size: 1 - random.exponential(size=size)),
    "bimodal": _shifted(lambda random, size: np.where(random.random(size) < 0.2, -4.0, 1.0)),
    "constant": _shifted(lambda random, size: np.zeros(size)),
    "one in ten fails": _failing(1.0, 0.0),
    "one in five fails by half": _failing(0.5, 0.0),
    "three in ten fail instead of one": _failing(0.5, 0.1),
}
