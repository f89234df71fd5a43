"""Where settings come from, and what several agents set alike."""

from __future__ import annotations

ZOO = "rl-baselines3-zoo, hyperparams/{}.yml (https://github.com/DLR-RM/rl-baselines3-zoo)"
NATURE = "Mnih et al. (2015), https://doi.org/10.1038/nature14236, extended data table 1"

IMPALA = "Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, appendix G, table G.1"

ATARI = {"reward_clip": 1.0, "episodic_life": True}
"""Of the environment in training on Atari games."""
