"""Runs that are not run."""

import json

import pytest

from troupe.baselines.comparison import runs


def make_up(request, folder, reporter):
    """Has all runs that were not begun come to the same at once, and leave it as they do."""
    for one in request.runs():
        path = folder / one.name
        if not path.exists():
            rows = [{"actor_steps": 60, "learner_steps": 40, "mean": 0.5}]
            path.mkdir(parents=True)
            (path / "config.json").write_text(json.dumps(one.recipe.to_json()))
            result = {
                **{"agent": "dqn", "env": "jax:Catch-v0", "seed": one.recipe.seed},
                **{"actor_steps": 60, "learner_steps": 40, "evaluation": rows},
                **{"train_seconds": 1.0, "wall_seconds": 2.0, "versions": {"jax": "0"}},
            }
            (path / "result.json").write_text(json.dumps(result))


@pytest.fixture
def made_up(monkeypatch):
    """No run is run."""
    monkeypatch.setattr(runs.grid, "conduct", make_up)


@pytest.fixture
def begun_alone(monkeypatch):
    """Runs that were begun go on; the others are not run."""
    conduct = runs.grid.conduct

    def run(request, folder, reporter):
        make_up(request, folder, reporter)
        conduct(request, folder, reporter)

    monkeypatch.setattr(runs.grid, "conduct", run)
