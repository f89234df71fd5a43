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
            # Until a third of the words is right, so that in most groups answers differ in score.
            "supervised_steps": 75,
            "supervised_learning_rate": 3e-3,
            "learning_rate": 1e-3,
            "normalize_advantages": True,
        },
        steps=24_000,
        target=0.8,
        # Words of one length, and a prompt of them alone. The generator's score of single letters
        # does not mind what follows the word: by it, answers come to be longer than that.
        environment={
            "min_word_len": 4,
            "max_word_len": 4,
            "template": "{word}=",
            "partial": False,
        },
        source="chosen here; by imitation 0.39 and 0.32, then 0.92 in half of the steps and 0.82",
        evaluation_every=2_400,
    ),
)
