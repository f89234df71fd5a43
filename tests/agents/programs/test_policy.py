"""The policy as a program: its state stays where it is computed, on one device or over a mesh."""

import collections
import functools
import gc
import threading

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments, partitioning
from troupe.agents import GenericActor, VariableClient, find_builder
from troupe.agents.acting import policies
from troupe.agents.acting.inference import InferenceServer
from troupe.agents.acting.remote import RemoteActor
from troupe.agents.programs import policy as program
from troupe.agents.programs.placement import Partition
from troupe.agents.programs.policy import PolicyProgram
from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.agents.snapshots import to_host
from troupe.agents.variables.client import MeshVariables
from troupe.launch import RequestError
from troupe.launch.experiment import Evaluation
from troupe.launch.local import run as local
from troupe.launch.specification.recipe import Recipe

SPEC = environments.make_spec(environments.fakes.discrete(seed=0))
MID = dm_env.transition(np.zeros(16), np.zeros((16, 4)))._replace(step_type=np.ones(16, np.int32))


class Source:
    version = 0

    def __init__(self, params):
        self.params = params

    def get_variables(self, names=("policy",)):
        return [self.params for _ in names]


class Unread:
    """An adder that nobody reads."""

    def add_first(self, timestep):
        pass

    def add(self, action, timestep, extras=()):
        pass


def half_core(size):
    """A memory of bfloat16 that becomes the output."""

    def step(params, x, memory):
        memory = (0.9 * memory + (x @ params).astype(jnp.bfloat16)).astype(jnp.bfloat16)
        return memory.astype(jnp.float32), memory

    choose = policies.epsilon_greedy(lambda params, values: values, 0.3)
    return policies.recurrent(step, jnp.zeros(size, jnp.bfloat16), choose)


def test_the_state_stays_in_its_own_dtypes():
    for size in (4, 4096):  # Packed, and by itself.
        actions = PolicyProgram(half_core(size), 3)
        actions.init(jax.random.split(jax.random.key(0), 3))
        params = np.random.default_rng(0).normal(size=(5, size)).astype(np.float32)
        actions(params, np.ones((3, 5), np.float32), np.ones(3, bool))
        held = sum(part.nbytes for part in actions._state)
        saved = actions.save()
        assert saved.memory.dtype == jnp.bfloat16
        assert held == sum(leaf.nbytes for leaf in jax.tree.leaves(saved))
        assert saved.memory.any()


@pytest.fixture(scope="module")
def large():
    """A transformer of 6 layers of 512 that remembers 128 rows."""
    agent = find_builder("r2d2")
    config = agent.config_class(
        **{"core": "transformer", "core_size": 512, "core_layers": 6, "memory_length": 128},
        **{"core_heads": 8, "hidden_sizes": (32,), "dtype": "bfloat16"},
    )
    networks = agent(config).make_networks(SPEC)
    return agent(config).make_policy(networks, SPEC), networks.init(jax.random.key(0))


@pytest.mark.long
@pytest.mark.parametrize("has_extras", [False, True])
def test_only_actions_and_extras_come_to_the_host(monkeypatch, large, has_extras):
    fetched, n = [], 16
    fetch = program.fetch

    def count(parts):
        found = fetch(parts)
        fetched.append(sum(part.nbytes for part in found))
        return found

    monkeypatch.setattr(program, "fetch", count)
    policy, params = large
    adder, client = Unread() if has_extras else None, VariableClient(Source(params))
    actor = GenericActor(policy, jax.random.key(0), client, adder, num_envs=n)
    keys = jax.random.split(jax.random.key(0), n)
    state, step = jax.jit(jax.vmap(policy.init))(keys), jax.jit(policies.batch(policy))
    state = jax.vmap(policy.set_stream)(state, jnp.arange(n))
    memory = sum(leaf.nbytes for leaf in jax.tree.leaves(state.memory))
    assert memory > n * 6 * 128 * 512 * 2
    for i in range(3):
        seen = np.random.default_rng(i).normal(size=(n, 4)).astype(np.float32)
        action, extras, state = step(params, seen, state, np.full(n, i == 0))
        np.testing.assert_array_equal(actor.select_action(seen), action)
        assert fetched.pop() == 4 * n + has_extras * sum(x.nbytes for x in jax.tree.leaves(extras))
        actor.observe(action, MID)
    for ours, theirs in zip(
        jax.tree.leaves(actor.save()), jax.tree.leaves(to_host(state)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


class Watch:
    """Counts the bytes of arrays that came to be, on the device that has most of them."""

    def __init__(self):
        gc.collect()
        self._before, self.most = self._now(), 0

    def look(self):
        now = self._now()
        self.most = max(self.most, *(now[one] - self._before[one] for one in jax.devices()))

    def _now(self):
        buffers = {}  # An array that was looked at part by part is there twice.
        for array in jax.live_arrays():
            for shard in array.addressable_shards:
                buffers[shard.device, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
        found = collections.Counter()
        for (device, _), size in buffers.items():
            found[device] += size
        return found


class Outgrown:
    """An agent of five layers, whose learner and policy are meant to outgrow a device."""

    def __init__(self, width=256):
        dqn = find_builder("dqn")
        self.builder = dqn(dqn.config_class(hidden_sizes=(width,) * 5, batch_size=8))
        self.networks = self.builder.make_networks(SPEC)
        self.policy = self.builder.make_policy(self.networks, SPEC, evaluation=True)
        shapes = jax.eval_shape(self.networks.init, jax.random.key(0))
        self.nbytes = sum(4 * leaf.size for leaf in jax.tree.leaves(shapes))

    def learner(self, mesh, schedule):
        partition = partition_of(mesh, schedule)
        key, data = jax.random.key(1), samples()
        return self.builder.make_learner(key, self.networks, SPEC, data, partition=partition)


def samples():
    random = np.random.default_rng(0)
    while True:
        shape = (1, 8)
        rows = random.normal(size=(2, *shape, 4)).astype(np.float32)
        ones = np.ones(shape, np.float32)
        action = random.integers(0, 3, shape).astype(np.int32)
        data = Transition(rows[0], action, ones, ones, rows[1])
        yield Sample(SampleInfo(np.zeros(shape, np.uint64), ones, ones), data)


def partition_of(mesh, schedule):
    return Partition(partitioning.parse_mesh(mesh), partitioning.parse_schedule(schedule))


MESHES = [
    ("model=8", "megatron:model"),
    ("data=8", "batch:data,zero3:data"),
    ("data=4,model=2", "batch:data,megatron:model,zero3:data"),
]


@pytest.mark.parametrize(("mesh", "schedule"), MESHES)
def test_a_policy_that_outgrew_a_device_acts_where_it_is_learned(mesh, schedule):
    agent, n = Outgrown(), 4
    watch = Watch()
    learner = agent.learner(mesh, schedule)
    client = VariableClient(MeshVariables(learner))
    actor = GenericActor(agent.policy, jax.random.key(0), client, num_envs=n)
    seen = np.random.default_rng(0).normal(size=(20, n, 4)).astype(np.float32)
    acted = []
    for observation in seen:
        acted.append(actor.select_action(observation))
        watch.look()
        learner.step()
        watch.look()
        actor.update()
        watch.look()
    # Of the learner's four copies an eighth each, and what the actor holds.
    assert watch.most < agent.nbytes
    assert len({tuple(row) for row in acted}) > 1
    (params,) = learner.get_variables(["policy"])
    whole = GenericActor(
        agent.policy, jax.random.key(0), VariableClient(Source(params)), num_envs=n
    )
    actor.update()
    for observation in seen:
        np.testing.assert_array_equal(
            actor.select_action(observation), whole.select_action(observation)
        )


def test_a_policy_that_outgrew_a_device_is_served_from_a_mesh():
    agent, n = Outgrown(), 3
    params = to_host(jax.jit(agent.networks.init)(jax.random.key(0)))
    watch = Watch()
    server = InferenceServer(
        agent.policy,
        VariableClient(source := Source(params)),
        SPEC.observations,
        batch_size=2 * n,
        device=partition_of("data=2,model=2", "batch:data,megatron:model"),
    )
    server.warm_up()
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            server.serve_once(0.01)
            watch.look()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        actors = [
            RemoteActor(
                agent.policy,
                jax.random.key(i),
                functools.partial(server.infer, str(i)),
                SPEC.actions,
                num_envs=n,
            )
            for i in range(2)
        ]
        seen = np.random.default_rng(0).normal(size=(20, n, 4)).astype(np.float32)
        acted = [[actor.select_action(rows) for actor in actors] for rows in seen]
        source.params, source.version = jax.tree.map(lambda x: x + 0.1, params), 1
        newer = [actors[0].select_action(rows) for rows in seen]
    finally:
        ended.set()
        thread.join()
    assert 0 < watch.most < 0.7 * agent.nbytes  # A half, and a new version before the old one goes.
    for version, found in ((params, [one for one, _ in acted]), (source.params, newer)):
        whole = GenericActor(
            agent.policy, jax.random.key(0), VariableClient(Source(version)), num_envs=n
        )
        np.testing.assert_array_equal(found, [whole.select_action(rows) for rows in seen])


def test_a_whole_run_acts_learns_and_is_judged_on_one_mesh(tmp_path, monkeypatch):
    agent = Outgrown()
    watch, calls = None, []

    def watched(self, *args, call=PolicyProgram.__call__):
        found = call(self, *args)
        calls.append(self.num_streams)
        watch.look()
        return found

    monkeypatch.setattr(PolicyProgram, "__call__", watched)
    recipe = Recipe(
        "dqn",
        "fake/discrete",
        {"hidden_sizes": (256,) * 5, "batch_size": 8, "min_replay_size": 16},
        steps=60,
        mesh="model=8",
        schedule="megatron:model",
        actor_device="mesh",
        evaluation=Evaluation(every=30, episodes=2, final_episodes=2),
    )
    watch = Watch()
    result = local.run(recipe.experiment(), tmp_path / "run", request=recipe.to_json())
    assert {1, 2} <= set(calls)  # The actor's environments, and those of evaluations.
    assert result.actor_steps >= 60
    assert len(result.evaluation) >= 2
    # Of the learner's four copies an eighth each, and what actor and evaluator hold.
    assert watch.most < agent.nbytes


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"actor_device": "mesh"}, "give it one with --mesh and --schedule"),
        (
            {"launch": "ray", "roles": {"actors": 1, "inference_mesh": "model=4"}},
            "--inference-mesh was given without --inference-schedule",
        ),
    ],
)
def test_a_mesh_that_is_not_there_is_refused(recipe, said):
    with pytest.raises(RequestError, match=said):
        Recipe("dqn", "fake/match", **recipe).experiment()
