"""Groups of answers as a learner gets them, and as a replay holds them.

Letters: B groups, G answers of a group, P tokens of a prompt, T of an answer.
"""

from __future__ import annotations

from typing import NamedTuple

import dm_env
import jax

from ..replay.items import Rollouts, Sequence

WINDOW = Rollouts(2)
"""An item of the replay: the row of a prompt and its answers, that of their scores, and the next
prompt's, with which it is complete."""


class AnswerGroups(NamedTuple):
    """B groups of answers."""

    prompt: jax.Array
    """int32 [B, P]"""
    solution: jax.Array
    """int32 [B, T], all padding where there is none"""
    tokens: jax.Array
    """int32 [B, G, T]"""
    score: jax.Array
    """float32 [B, G]"""
    log_probs: jax.Array
    """float32 [B, G, T], of the sampler"""
    steps: jax.Array
    """int32 [B], gradient steps that the sampler's parameters had behind them"""
    is_group: jax.Array
    """float32 [B], 0 where an episode was broken off"""


def read_groups(data: Sequence) -> AnswerGroups:
    """Takes groups from a batch of `WINDOW`."""
    kinds = data.step_type
    is_group = (kinds[:, 0] == int(dm_env.StepType.FIRST)) & (
        kinds[:, 1] == int(dm_env.StepType.LAST)
    )
    return AnswerGroups(
        data.observation["prompt"][:, 0],
        data.observation["solution"][:, 0],
        data.action[:, 0],
        data.observation["scores"][:, 1],
        data.extras["log_probs"][:, 0],
        data.extras["steps"][:, 0],
        is_group * data.mask[:, 0] * data.mask[:, 1],
    )
