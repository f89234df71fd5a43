"""The sources of tuned settings, and the settings that several agents share."""

from __future__ import annotations

ZOO = "rl-baselines3-zoo, hyperparams/{}.yml (https://github.com/DLR-RM/rl-baselines3-zoo)"
NATURE = "Mnih et al. (2015), https://doi.org/10.1038/nature14236, extended data table 1"

IMPALA = "Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, appendix G, table G.1"

ATARI = {"reward_clip": 1.0, "episodic_life": True}
"""Of the environment in training on Atari games."""

OFFLINE = {"hidden_sizes": (64, 64), "learning_rate": 1e-3, "batch_size": 128}
"""Of small tasks that are learned from data."""
MIXED_CARTPOLE = (
    "chosen here, on 20,000 steps of a C51 that returns 500, with two in five actions drawn "
    "uniformly (`troupe record --epsilon 0.4`): 233"
)
MIXED_PENDULUM = (
    "chosen here, on 20,000 steps of a SAC that returns -151, with half of the actions drawn "
    "uniformly (`troupe record --epsilon 0.5`): -488"
)
MIXED_INVERTED_PENDULUM = (
    "chosen here, on 20,000 steps of a SAC that returns 1000, with three in ten actions drawn "
    "uniformly (`troupe record --epsilon 0.3`): 62; seeds 0 and 1 came to 1000"
)
"""Data of policies that stray, and the mean return of its episodes."""
