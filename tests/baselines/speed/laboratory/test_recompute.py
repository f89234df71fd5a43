"""The benchmark of recomputation goes down the budgets, and says where none is met."""

import jax

from troupe.baselines.speed.laboratory import recompute
from troupe.partitioning.simulator.calibration import nearest

SIZES = {"num_layers": 2, "batch": 64, "length": 16, "width": 32, "vocabulary": 64, "scan": True}


def test_budgets_are_met_and_compiled_until_none_is():
    device = nearest(jax.devices()[0], 1)
    whole, less, none = recompute.budgets(SIZES, device, (1.0, 0.8, 0.01, 0.005), compiled=True)
    assert (whole["regions"], whole["peak"], whole["seconds"]) == (0, 1.0, 1.0)
    assert less["regions"] > 0
    assert less["peak"] <= 0.8
    assert less["compiled_bytes"] < whole["compiled_bytes"]
    assert none["infeasible"].startswith("infeasible: the step needs at least")
