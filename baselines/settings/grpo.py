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
    Tuned(
        "grpo",
        "tokens:reasoning_gym/palindrome_generation",
        config={
            **_SMALL,
            "num_heads": 4,
            # Imitation ends before it has taught the task: nine words of ten are still wrong.
            "supervised_steps": 30,
            "supervised_learning_rate": 3e-3,
            "learning_rate": 1e-3,
            # Those of the run: what changes last would else be noise of 3 % in the score.
            "learning_rate_steps": 750,
            "normalize_advantages": True,
        },
        steps=24_000,
        target=0.9,
        # Two letters twice each, of which either may begin the word.
        environment={
            "min_length": 4,
            "max_length": 4,
            "template": "{letters[0]}{letters[1]}{letters[2]}{letters[3]}=",
            "partial": False,
        },
        source="chosen here; seeds 0 to 2 come from 0.02 after imitation to 0.99, 1.00 and 1.00",
        evaluation_every=960,
    ),
)
