"""Inference servers: the same actions as acting alone, in batches, and errors that come back."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.agents import ActorCore, GenericActor, VariableClient
from troupe.agents.acting.inference import InferenceServer
from troupe.agents.acting.remote import RemoteActor


class Source:
    version = 0

    def __init__(self, params):
        self.params = params

    def get_variables(self, names):
        return [self.params]


def init(key):
    return {"key": key, "memory": jnp.zeros(2)}


def select_action(params, observation, state):
    key, use = jax.random.split(state["key"])
    memory = 0.5 * state["memory"] + jnp.sum(observation) * params
    action = jax.random.categorical(use, jnp.stack([memory[0], memory[1], 0.1]))
    return action.astype(jnp.int32), {"key": key, "memory": memory}


def reset(state):
    return {**state, "memory": jnp.zeros(2)}


POLICY = ActorCore(init, select_action, lambda before, after: (before["memory"],), reset)
PARAMS = jnp.array([0.3, -0.2])


@pytest.fixture
def spec():
    with environments.make("fake/ragged", seed=0, num_envs=1) as environment:
        return environments.make_spec(environment)


def make_server(spec, **options):
    client = VariableClient(Source(PARAMS))
    return InferenceServer(POLICY, client, spec.observations, **options)


class Serving:
    def __init__(self, server):
        self.server, self.stop = server, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            self.server.serve_once(0.01)

    def __enter__(self):
        self.thread.start()
        return self.server

    def __exit__(self, *exception):
        self.stop.set()
        self.thread.join()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_actions_are_those_of_an_actor_with_parameters(spec, num_envs):
    key = jax.random.key(5)
    with Serving(make_server(spec, batch_size=4, wait_seconds=0.0)) as server:
        far = RemoteActor(POLICY, key, server.infer, spec.actions, num_envs=num_envs)
        near = GenericActor(POLICY, key, VariableClient(Source(PARAMS)), num_envs=num_envs)
        environment = environments.make("fake/ragged", seed=1, num_envs=num_envs)
        timestep = environment.reset()
        for actor in (far, near):
            actor.observe_first(timestep)
        for _ in range(40):
            action = far.select_action(timestep.observation)
            np.testing.assert_array_equal(action, near.select_action(timestep.observation))
            timestep = environment.step(action)
            for actor in (far, near):
                actor.observe(action, timestep)
        for ours, theirs in zip(
            jax.tree.leaves(far.save()), jax.tree.leaves(near.save()), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_requests_of_several_actors_share_a_batch(spec):
    server = make_server(spec, batch_size=4, wait_seconds=60.0)
    actors = [
        RemoteActor(POLICY, jax.random.key(i), server.infer, spec.actions, num_envs=2)
        for i in range(2)
    ]
    observation = np.ones((2, *spec.observations.shape), np.float32)
    threads = [threading.Thread(target=a.select_action, args=(observation,)) for a in actors]
    for thread in threads:
        thread.start()
    assert server.serve_once(60.0) == 4  # Full, so the minute is not waited for.
    for thread in threads:
        thread.join()
    assert (server.calls, server.rows) == (1, 4)


def test_a_batch_is_not_waited_for_longer_than_its_limit(spec):
    server = make_server(spec, batch_size=8, wait_seconds=0.01)
    actor = RemoteActor(POLICY, jax.random.key(0), server.infer, spec.actions)
    thread = threading.Thread(
        target=actor.select_action, args=(np.ones(spec.observations.shape, np.float32),)
    )
    thread.start()
    assert server.serve_once(60.0) == 1
    thread.join()


def test_an_error_comes_back_to_who_asked(spec):
    with Serving(make_server(spec, batch_size=1)) as server:
        with pytest.raises(Exception, match="shape"):
            server.infer([np.ones((1, 999), np.float32)] * 3, np.ones(1, bool))
        actor = RemoteActor(POLICY, jax.random.key(0), server.infer, spec.actions)
        actor.select_action(np.ones(spec.observations.shape, np.float32))


def test_nobody_waits_for_ever(spec):
    with pytest.raises(TimeoutError, match=r"no action within 0.01 s"):
        make_server(spec, batch_size=1).infer([np.ones((1, 4))], np.ones(1, bool), 0.01)


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("wait_seconds", -1.0)])
def test_settings_out_of_range_are_refused(spec, option, value):
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        make_server(spec, **{"batch_size": 1, option: value})
