"""A learner whose step is a pipeline learns what it learns on one device."""

import itertools

import jax
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.agents import SGDLearner, Update, examples
from troupe.agents.programs.placement import Partition
from troupe.agents.snapshots import to_host

from ...results import assert_equal_results

K = 2
# A large epsilon: the smallest gradients are rounding, and Adam would have steps of their signs.
SIZES = {"num_envs": 8, "batch_size": 8, "rollout_length": 3, "adam_epsilon": 1e-3}
TRANSFORMER = {"core": "transformer", "core_size": 8, "core_layers": 2, "memory_length": 2}
ONE_F_ONE_B = pt.Pipeline("stage", 2)


def learner(agent, sizes, mesh=None, schedule="", pipeline=None, **options):
    """A learner of an agent's update, with batches drawn from a key."""
    made = examples.make(agent, **sizes)

    def init(key):
        return made.init(jax.random.key_data(key))

    def batches():
        for number in itertools.count():
            keys = jax.random.split(jax.random.key(number), K)
            batch = [made.make_batch(jax.random.key_data(key)) for key in keys]
            yield jax.tree.map(lambda *x: np.stack(x), *batch)

    if mesh is not None:
        tactics = [*pt.parse_schedule(schedule)] if schedule else []
        tactics += [pipeline] if pipeline is not None else []
        options["partition"] = Partition(pt.parse_mesh(mesh), tactics, device="h100")

    def policy(state):
        return {"policy": getattr(state, "variables", state).params}

    update = Update(init, made.update, policy)
    return SGDLearner(update, batches(), jax.random.key(1), steps_per_dispatch=K, **options)


def check(agent, sizes, *partition, **options):
    """Compares a pipelined learner with one on one device, and returns it."""
    alone, staged = learner(agent, sizes), learner(agent, sizes, *partition, **options)
    held = []
    for _ in range(2):
        alone.step()
        staged.step()
        held += staged.get_variables(["policy"])
    assert staged.steps == alone.steps == 2 * K
    assert staged.metrics() == pytest.approx(alone.metrics(), rel=1e-3, abs=1e-5)
    assert_equal_results(to_host(staged.save()), to_host(alone.save()), 5e-5, least=1e-3)
    # What actors hold lies on one device, and outlives the state that was donated.
    for leaf in jax.tree.leaves(held):
        assert len(leaf.devices()) == 1
        assert np.isfinite(leaf).all()
    assert_equal_results(held[-1], alone.get_variables(["policy"])[0], 5e-5, least=1e-3)
    return alone, staged


def goes_on(ours, alone):
    """Has both learn from the first batches anew, and compares them."""
    for one in (ours, alone):
        one._samples = learner("impala", SIZES)._samples
        one.step()
    assert ours.steps == alone.steps
    assert_equal_results(to_host(ours.save()), to_host(alone.save()), 5e-5, least=1e-3)


def test_it_saves_arrays_of_stages_and_goes_on_anywhere():
    alone, staged = check("impala", SIZES, "data=2,stage=2", "batch:data", ONE_F_ONE_B)
    saved = staged.save()
    lie = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(saved["state"])}
    assert lie == {2, 4}
    saved = to_host(saved)
    other = learner("impala", SIZES, "data=4", "batch:data,zero3:data")
    other.restore(saved)
    again = learner("impala", SIZES, "stage=2", "", pt.Pipeline("stage", 4, "gpipe"))
    again.restore(other.save())
    assert_equal_results(to_host(again.save()), saved, 0.0)
    goes_on(again, alone)


@pytest.mark.long
def test_a_transformer_in_one_loop_behind_other_tactics():
    sizes = {**SIZES, **TRANSFORMER}
    check("impala", sizes, "data=2,stage=2", "batch:data,zero3:data", ONE_F_ONE_B)


@pytest.mark.long
def test_layers_of_a_transformer_lie_on_stages():
    mesh = "data=2,stage=2,model=2"
    sizes = {**SIZES, **TRANSFORMER, "core_loop": False}
    _, staged = check("impala", sizes, mesh, "batch:data,megatron:model", ONE_F_ONE_B)
    lie = {
        name: {leaf.sharding for leaf in jax.tree.leaves(layer)}
        for name, layer in staged.state.params.items()
        if "layer_" in name
    }
    devices = [one.mesh.devices.flat[0] for shardings in lie.values() for one in shardings]
    assert len({*devices}) == 2


@pytest.mark.long
def test_priorities_are_those_of_one_device():
    sizes = {"batch_size": 8, "hidden_sizes": (8,), "core_size": 8, "adam_epsilon": 1e-3}
    options = {"mesh": "data=2,stage=2", "schedule": "batch:data", "pipeline": ONE_F_ONE_B}
    written = []
    for one in (learner("r2d2", sizes), learner("r2d2", sizes, **options)):
        one._write_priorities = lambda keys, priorities: written.append(priorities)
        one.step()
    assert written[0].shape == written[1].shape == (K, 8)
    np.testing.assert_allclose(written[1], written[0], rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("agent", ["sac", "ppo"])
def test_a_learner_of_several_phases(agent):
    sizes = {"hidden_sizes": (8, 8), "adam_epsilon": 1e-3}
    check(agent, sizes, "data=2,stage=2", "batch:data,zero3:data", ONE_F_ONE_B)
