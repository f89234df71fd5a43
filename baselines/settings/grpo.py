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
            # Of solutions until a third of the letters is right; the rest is reinforced.
            "supervised_steps": 30,
            "supervised_learning_rate": 3e-3,
            "learning_rate": 1.5e-3,
            "normalize_advantages": True,
        },
        steps=32_000,
        target=0.9,
        # Short words, and a prompt of them alone.
        environment={"max_word_len": 5, "template": "{word}="},
        source="chosen here",
        evaluation_every=1_600,
    ),
)
