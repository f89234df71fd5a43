"""Parameters of a learner on a mesh, in a policy with a mesh of its own."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from troupe import launch
from troupe import partitioning as pt
from troupe.agents.variables.reader import VariableReader
from troupe.agents.variables.server import VariableServer
from troupe.agents.variables.sync import MeshSync
from troupe.launch import planning
from troupe.launch.errors import RequestError
from troupe.launch.evaluation.evaluator import Evaluator
from troupe.launch.experiment import Evaluation
from troupe.launch.local import components
from troupe.launch.local import run as local
from troupe.launch.signals import Stop
from troupe.launch.specification.recipe import Recipe

from ...waiting import wait_for

SMALL = {
    "ppo": ("fake/continuous", {"num_envs": 4, "rollout_length": 8, "num_minibatches": 2}),
    "impala": ("fake/match", {"num_envs": 4, "rollout_length": 8, "batch_size": 4}),
    "sac": (
        "fake/continuous",
        {
            **{"hidden_sizes": (16, 16), "batch_size": 8, "min_replay_size": 16},
            "samples_per_insert": 16.0,
        },
    ),
}
LEARNER = {"mesh": "data=2,model=2", "schedule": "batch:data,megatron:model,zero3:data"}


def recipe(agent, **fields):
    env, config = SMALL[agent]
    evaluation = Evaluation(every=100, episodes=2, final_episodes=2)
    return Recipe(agent, env, config, steps=200, evaluation=evaluation, **{**LEARNER, **fields})


def sharding(devices, spec, axes=("a",)):
    shape = [len(devices)] if len(axes) == 1 else [2, len(devices) // 2]
    return NamedSharding(jax.sharding.Mesh(np.array(devices).reshape(shape), axes), spec)


def test_arrays_go_to_where_they_are_used_and_those_there_already_stay():
    devices = jax.devices()
    rows = sharding(devices[:4], PartitionSpec("a"))
    columns = sharding(devices[4:], PartitionSpec(None, "a"))
    values = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    sync = MeshSync({"w": columns, "b": columns, "host": rows, "key": columns})
    given = {
        "w": jax.device_put(values, rows),
        "b": jax.device_put(values + 1, columns),
        "host": values + 2,
        "key": jax.random.split(jax.random.key(0), (4, 4)),
    }
    found = sync(given)
    assert found["b"] is given["b"]
    assert [found[name].sharding for name in "wb"] == [columns, columns]
    assert found["host"].sharding == rows
    for name, more in (("w", 0), ("b", 1), ("host", 2)):
        np.testing.assert_array_equal(np.asarray(found[name]), values + more)
    assert (jax.random.key_data(found["key"]) == jax.random.key_data(given["key"])).all()
    assert sync.plan.bytes_sent == values.nbytes
    before = sync.plan
    sync(given)
    assert sync.plan is before  # It is made once.


def test_the_host_never_has_an_array_whole():
    """`jax.device_put` between disjoint devices keeps what it has brought to the host."""
    devices = jax.devices()
    array = jax.device_put(np.zeros((8, 8), np.float32), sharding(devices[:4], PartitionSpec("a")))
    there = sharding(devices[4:], PartitionSpec(None, "a"))
    jax.block_until_ready(MeshSync(there)(array))
    assert array._npy_value is None
    jax.block_until_ready(jax.device_put(array, there))
    assert array._npy_value is not None


@pytest.mark.parametrize("agent", SMALL)
def test_a_sampler_on_a_device_of_its_own_acts_as_one_that_gathers(agent, tmp_path):
    found = {}
    for name, sampler in (("gathers", None), ("own", "model=1")):
        run = recipe(agent, sampler_mesh=sampler)
        found[name] = local.run(run.experiment(), tmp_path / name, request=run.to_json())
    assert found["own"].evaluation == found["gathers"].evaluation
    assert found["own"].learner_steps == found["gathers"].learner_steps > 0


@pytest.mark.parametrize(
    ("agent", "sampler", "places"),
    [("ppo", "model=1", [4]), ("impala", "model=2", [4, 5]), ("sac", "data=2,model=4", range(8))],
)
def test_a_policy_holds_the_learners_parameters_by_value(agent, sampler, places):
    tactics = [pt.Manual("spread", {"params/**": pt.FIRST_DIVISIBLE}, "model")]
    partition = launch.Partition(pt.parse_mesh(sampler), tactics if len(places) > 1 else ())
    experiment = dataclasses.replace(recipe(agent).experiment(), sampler_partition=partition)
    with (
        components.make_environment(experiment, 0) as environment,
        components.make(experiment, environment) as parts,
    ):
        actor, timestep = parts.actor, environment.reset()
        actor.observe_first(timestep)
        actor.select_action(timestep.observation)
        held = actor._program._params
        whole = parts.learner.get_variables()[0]
        jax.tree.map(np.testing.assert_array_equal, held, whole)
        found = {device.id for leaf in jax.tree.leaves(held) for device in leaf.devices()}
        assert found == {*places}
        sync = actor._program._sync.plan
        assert sync.bytes_sent > 0
        planned = planning.plan_sampler(experiment, parts.learner.plan, parts.spec)
        where = planned.shared if len(places) == 8 else planned.beside
        assert (where.bytes_sent, planned.computed) == (sync.bytes_sent, ())
        cut = [leaf for leaf in jax.tree.leaves(held) if not leaf.is_fully_replicated]
        assert bool(cut) == (sampler != "model=1")


def test_a_sampler_without_a_learners_mesh_has_its_own(tmp_path):
    run = recipe(
        "sac", mesh=None, schedule=None, sampler_mesh="model=2", sampler_schedule="megatron:model"
    )
    result = local.run(run.experiment(), tmp_path / "run", request=run.to_json())
    assert result.learner_steps > 0
    again = Recipe.from_json(run.to_json())
    assert again.experiment().sampler_partition.mesh == run.experiment().sampler_partition.mesh


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"sampler_schedule": "megatron:model"},
            "--sampler-schedule was given without --sampler-mesh",
        ),
        ({"sampler_mesh": "model=2"}, "which says what its 2 devices divide: megatron:model, say"),
        (
            {"sampler_mesh": "model=1", "actor_device": "mesh"},
            "--actor-device mesh was given beside",
        ),
        ({"sampler_mesh": "model=1", "actor_device": "cpu"}, "--actor-device cpu was given beside"),
        ({"sampler_mesh": "model=1", "launch": "compiled"}, "take --launch one-process"),
        (
            {"sampler_mesh": "model=1", "launch": "ray", "roles": {"actors": 1}},
            "between processes --inference-servers, --inference-mesh",
        ),
        ({"sampler_mesh": "model=x"}, "'model=x' is not AXIS=SIZE"),
    ],
)
def test_a_sampler_that_contradicts_something_is_refused_in_one_line(fields, said):
    with pytest.raises(ValueError, match=said):
        recipe("sac", **fields).experiment()


def test_newer_variables_of_an_evaluator_come_where_its_policy_is_computed():
    """The reader places them in its thread, where what fails is asked for again."""
    experiment = recipe("sac").experiment()
    tactics = [pt.Manual("spread", {"params/**": pt.FIRST_DIVISIBLE}, "model")]
    sampler = launch.Partition(pt.parse_mesh("model=2"), tactics)
    with (
        components.make_environment(experiment, 0) as environment,
        components.make(experiment, environment) as parts,
    ):
        whole = jax.tree.map(np.asarray, parts.learner.get_variables()[0])
    newest, networks = [0], experiment.make_networks(parts.spec)
    reader = VariableReader(
        VariableServer(),
        fetch=lambda _, newer: (newest[0], {"policy": whole}) if newest[0] > newer else None,
        period=0.005,
        on_host=True,
    )
    evaluator = Evaluator(experiment, parts.spec, networks, reader, sampler)
    assert evaluator.run(0, 1, 0, Stop()) is not None
    newest[0] = 1
    wait_for(lambda: reader.version == 1)
    (held,) = reader.get_variables()
    places = {device.id for leaf in jax.tree.leaves(held) for device in leaf.devices()}
    assert places == {0, 1}
    assert not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(held))
    assert evaluator.run(1, 1, 0, Stop()) is not None
    (actor, _), *_ = evaluator._actors.values()
    assert jax.tree.leaves(actor._program._params)[0] is jax.tree.leaves(held)[0]
    jax.tree.map(np.testing.assert_array_equal, held, whole)
    reader.close()


def test_a_sampler_larger_than_the_machine_is_refused(tmp_path):
    run = recipe("sac", sampler_mesh="model=16", sampler_schedule="megatron:model")
    with pytest.raises(RequestError, match="--sampler-mesh: mesh model=16 needs 16 devices"):
        local.run(run.experiment(), tmp_path / "run", request=run.to_json())
