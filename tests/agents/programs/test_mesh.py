"""A learner over a mesh learns what it learns on one device."""

import jax
import numpy as np
import pytest

from troupe import environments, partitioning
from troupe.agents import find_builder
from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.agents.snapshots import to_host
from troupe.launch.experiment import Partition

B, K = 16, 2
SPEC = environments.make_spec(environments.fakes.discrete(seed=0))


def samples():
    random = np.random.default_rng(0)
    while True:
        shape = (K, B)
        observations = random.normal(size=(2, *shape, 4)).astype(np.float32)
        data = Transition(
            observation=observations[0],
            action=random.integers(0, 3, shape).astype(np.int32),
            reward=random.normal(size=shape).astype(np.float32),
            discount=np.ones(shape, np.float32),
            next_observation=observations[1],
        )
        probabilities = random.uniform(0.1, 1, shape).astype(np.float32)
        size = np.full(shape, 100, np.float32)
        yield Sample(SampleInfo(np.arange(K * B).reshape(shape), probabilities, size), data)


def learner(mesh=None, schedule="", **options):
    builder_class = find_builder("dqn")
    config = builder_class.config_class(
        hidden_sizes=(16, 16), batch_size=B, steps_per_dispatch=K, priority_exponent=0.6
    )
    builder = builder_class(config)
    if mesh is not None:
        options["partition"] = Partition(
            partitioning.parse_mesh(mesh), partitioning.parse_schedule(schedule)
        )
    networks = builder.make_networks(SPEC)
    return builder.make_learner(jax.random.key(1), networks, SPEC, samples(), **options)


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [("data=8", "batch:data"), ("data=4,model=2", "batch:data,megatron:model,zero3:data")],
)
def test_it_learns_the_same_saves_the_same_and_goes_on(mesh, schedule):
    alone, spread = learner(), learner(mesh, schedule)
    held = []
    for _ in range(3):
        alone.step()
        spread.step()
        held += spread.get_variables(["policy"])
    assert spread.steps == alone.steps == 3 * K
    assert spread.metrics() == pytest.approx(alone.metrics(), rel=1e-4)
    for ours, theirs in zip(
        jax.tree.leaves(spread.save()), jax.tree.leaves(alone.save()), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    # What actors hold lies on one device, and outlives the state that was donated.
    for leaf in jax.tree.leaves(held):
        assert len(leaf.devices()) == 1
        assert np.isfinite(leaf).all()
    again = learner(mesh, schedule)
    again.restore(to_host(spread.save()))
    again.step()
    spread.step()
    assert again.steps == spread.steps == 4 * K


def test_priorities_are_those_of_one_device():
    written = {"alone": [], "spread": []}
    for name, one in (("alone", learner()), ("spread", learner("data=8", "batch:data"))):
        one._write_priorities = lambda keys, priorities, to=written[name]: to.append(priorities)
        one.run(2)
    np.testing.assert_allclose(written["spread"], written["alone"], rtol=1e-4)
    assert np.shape(written["spread"]) == (2, K, B)


def test_a_mesh_of_more_devices_than_there_are():
    with pytest.raises(ValueError, match="16"):
        learner("data=16", "batch:data")


def test_a_tactic_on_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match="model"):
        learner("data=8", "megatron:model")
