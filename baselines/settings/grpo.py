"""Settings of GRPO."""

from __future__ import annotations

from ..tuned import Tuned

_SMALL = {"width": 64, "num_layers": 2, "num_heads": 2, "num_envs": 32, "batch_size": 32}
"""A language model of 130,000 parameters, and the groups of a gradient step."""

SETTINGS = (
    Tuned(
        "grpo",
        "tokens:reasoning_gym/spell_backward",
        config={
            **_SMALL,
            # Until a third of the words is right: from far less, the part of the score that single
            # letters have comes to be all that is learned.
            "supervised_steps": 200,
            "supervised_learning_rate": 3e-3,
            "learning_rate": 1e-3,
            "normalize_advantages": True,
        },
        steps=25_600,
        target=0.85,
        # Short words, and a prompt of them alone.
        environment={"max_word_len": 5, "template": "{word}="},
        source="chosen here; seed 0 came to 0.90 of the score, from 0.72 where imitation ended",
        evaluation_every=1_600,
    ),
)
