"""A run whose learner is a pipeline ends, is saved, and goes on over other devices."""

import pytest

from troupe.launch.compiled import run as compiled
from troupe.launch.errors import RequestError
from troupe.launch.local import run as local
from troupe.launch.specification.recipe import Recipe

SIZES = {"hidden_sizes": (8, 8), "num_envs": 4, "batch_size": 4, "rollout_length": 4}


def run(out, steps, mesh, schedule, **options):
    given = {"mesh": mesh, "schedule": schedule, "device": "h100"}
    recipe = Recipe("impala", "fake/match", SIZES, steps=steps, **given)
    return local.run(recipe.experiment(), out, request=recipe.to_json(), **options)


@pytest.mark.long
def test_it_goes_on_over_other_devices(tmp_path):
    before = run(tmp_path, 64, "data=2,stage=2", "batch:data,pipeline:stage")
    assert before.learner_steps > 0
    assert before.evaluation
    again = run(tmp_path, 128, "data=2", "batch:data", resume=True)
    last = run(tmp_path, 192, "stage=4", "pipeline:stage", resume=True)
    assert before.learner_steps < again.learner_steps < last.learner_steps


def test_a_compiled_run_refuses_it(tmp_path):
    given = {"mesh": "stage=2", "schedule": "pipeline:stage", "device": "h100"}
    recipe = Recipe("impala", "jax:CartPole-v1", SIZES, launch="compiled", **given)
    with pytest.raises(RequestError, match="--launch compiled runs no pipeline"):
        compiled.run(recipe.experiment(), tmp_path, request=recipe.to_json())
