"""Answers are begun no further ahead of the learner than `max_staleness` says."""

import json

import pytest

from troupe.agents.grpo import GRPOBuilder, GRPOConfig
from troupe.launch.experiment import Evaluation
from troupe.launch.local import run as local
from troupe.launch.specification.recipe import Recipe

SMALL = {"width": 16, "num_layers": 1, "num_heads": 2, "num_envs": 8, "batch_size": 4}


@pytest.mark.parametrize(
    ("fields", "items"),
    [
        # The batch that the newest parameters are for, and those that may be learned from before.
        ({"max_staleness": 8}, 9 * 4),
        ({"max_staleness": 3, "steps_per_dispatch": 2}, 4 * 4),
        ({"max_staleness": 1}, 8),
        ({"max_staleness": None}, None),
    ],
)
def test_items_that_may_be_begun(fields, items):
    config = GRPOConfig(**SMALL, **fields)
    assert GRPOBuilder(config).make_replay_spec(None).max_ahead == items


def test_in_one_process_no_answer_is_learned_from_too_late(tmp_path):
    recipe = Recipe(
        "grpo",
        "tokens:reverse",
        config={**SMALL, "max_staleness": 1, "steps_per_dispatch": 1},
        environment={"length": 2, "answers": 2},
        steps=400,
        evaluation=Evaluation(every=400, episodes=1, final_episodes=1),
    )
    result = local.run(recipe.experiment(), tmp_path / "run", request=recipe.to_json())
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    found = [(row["staleness"], row["stale_groups"]) for row in rows if "staleness" in row]
    assert result.learner_steps > 40
    assert found
    assert all(0 <= staleness <= 1 and not stale for staleness, stale in found)
