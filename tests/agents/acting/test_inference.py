"""Inference servers: the actions of acting alone, in batches, and sessions that get lost."""

import functools
import threading

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import environments
from troupe.agents import ActorCore, GenericActor, VariableClient
from troupe.agents.acting import policies
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


def make_server(spec, policy=POLICY, **options):
    client = VariableClient(Source(PARAMS))
    return InferenceServer(policy, client, spec.observations, **options)


def make_actor(server, spec, name="a", seed=0, policy=POLICY, **options):
    infer = functools.partial(server.infer, name)
    return RemoteActor(policy, jax.random.key(seed), infer, spec.actions, **options)


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


def alone(policy=POLICY, seed=0, num_envs=None):
    client = VariableClient(Source(PARAMS))
    return GenericActor(policy, jax.random.key(seed), client, Unread(), num_envs=num_envs)


class Unread:
    """An adder that nobody reads."""

    def add_first(self, timestep):
        pass

    def add(self, action, timestep, extras=()):
        self.extras = extras


@pytest.mark.parametrize("num_envs", [1, 3])
def test_actions_are_those_of_an_actor_with_parameters(spec, num_envs):
    with Serving(make_server(spec, batch_size=4, wait_seconds=0.0)) as server:
        server.warm_up()
        adder = Unread()
        far = make_actor(server, spec, seed=5, adder=adder, num_envs=num_envs)
        near = alone(seed=5, num_envs=num_envs)
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
            np.testing.assert_allclose(adder.extras[0], near._adder.extras[0], rtol=1e-5)


def test_requests_of_several_actors_share_a_batch(spec):
    server = make_server(spec, batch_size=4, wait_seconds=60.0)
    actors = [make_actor(server, spec, str(i), i, num_envs=2) for i in range(2)]
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
    actor = make_actor(server, spec)
    thread = threading.Thread(target=actor.select_action, args=(one(spec),))
    thread.start()
    assert server.serve_once(60.0) == 1
    thread.join()


def one(spec):
    return np.ones(spec.observations.shape, np.float32)


def test_clients_that_come_and_go_keep_their_own_states(spec):
    """More of them than there was room for, and one that is replaced."""
    server = make_server(spec, batch_size=2, wait_seconds=0.0)
    with Serving(server):
        actors = {i: (make_actor(server, spec, str(i), i), alone(seed=i)) for i in range(3)}
        for step in range(12):
            if step == 5:
                old = actors[1][0]
                actors[1] = make_actor(server, spec, "1", 10), alone(seed=10)
            if step == 7:
                actors[3] = make_actor(server, spec, "3", 3, num_envs=4), alone(seed=3, num_envs=4)
            for far, near in actors.values():
                seen = one(spec) * step
                seen = np.stack([seen] * 4) if far._batched else seen
                np.testing.assert_array_equal(far.select_action(seen), near.select_action(seen))
        with pytest.raises(RuntimeError, match="another session has taken the place of 1's"):
            old.select_action(one(spec))
        assert sorted(server._free + [r for s in server._sessions.values() for r in s.rows]) == [
            *range(8)
        ]


def test_a_request_that_is_repeated_steps_once(spec):
    near = alone()
    with Serving(make_server(spec, batch_size=1)) as server:
        infer = functools.partial(server.infer, "a")

        def twice(*request):
            answers = [infer(*request) for _ in range(2)]
            assert answers[0] is answers[1]
            return answers[0]

        far = RemoteActor(POLICY, jax.random.key(0), twice, spec.actions)
        for _ in range(10):
            np.testing.assert_array_equal(
                far.select_action(one(spec)), near.select_action(one(spec))
            )
        assert server.calls == 10
        assert infer(far._session, 3, [one(spec)[None]], np.zeros(1, bool)) is None  # Long gone.
        assert server.calls == 10


def test_a_request_that_waits_is_found_by_its_repetition(spec):
    server = make_server(spec, batch_size=4, wait_seconds=0.0)
    answers = []
    request = ("a", "session", 0, [one(spec)[None]], np.ones(1, bool))
    begin = (np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 1))), 0, 0)
    threads = [
        threading.Thread(target=lambda: answers.append(server.infer(*request, begin)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while not server.serve_once(1.0):
        pass
    for thread in threads:
        thread.join()
    assert len(answers) == 3
    assert server.rows == 1
    assert all(answer is answers[0] for answer in answers)


def test_a_server_that_was_lost_goes_on_with_counts_and_without_memories(spec):
    """A policy without memory acts as if nothing had been."""
    greedy = policies.epsilon_greedy(
        lambda params, observation: jnp.sum(observation) * params,
        lambda count, stream: 1.0 - 0.02 * count * (stream == 3),
        by_stream=True,
    )
    for policy in (greedy, POLICY):
        servers = [make_server(spec, policy, batch_size=2) for _ in range(2)]
        with Serving(servers[0]), Serving(servers[1]):
            asked = iter([servers[0]] * 21 + [servers[1]] * 100)

            def infer(*request, asked=asked):
                return next(asked).infer("a", *request)

            adder = Unread()
            far = RemoteActor(policy, jax.random.key(0), infer, spec.actions, adder, num_envs=2)
            near = alone(policy, num_envs=2)
            if policy is greedy:
                for actor in (far, near):
                    actor.set_streams(2)
                    actor.set_num_actions(7)
            steps = [dm_env.transition(0.0, np.ones((2, *one(spec).shape), np.float32))] * 30
            steps = [step._replace(step_type=np.ones(2, np.int32)) for step in steps]
            memories = []
            for step in steps:
                action = far.select_action(step.observation)
                if policy is greedy:
                    np.testing.assert_array_equal(action, near.select_action(step.observation))
                far.observe(action, step)
                memories.append(adder.extras)
            if policy is POLICY:
                forgotten = [i for i in range(30) if not memories[i][0].any()]
                assert forgotten == [0, 21]


def test_what_fails_forgets_those_whose_state_is_not_known(spec):
    server = make_server(spec, batch_size=1)
    with Serving(server):
        actor, near = make_actor(server, spec), alone()
        actor.select_action(one(spec))
        runs, whole = server._program._runs, server._program._runs[1]
        runs[1] = lambda *args: [part.delete() for part in server._program._state][5], *whole[1:]
        with pytest.raises(IndexError):
            actor.select_action(one(spec))
        runs[1] = whole
        assert not server._sessions
        near.set_num_actions(0)
        np.testing.assert_array_equal(actor.select_action(one(spec)), near.select_action(one(spec)))


def test_an_error_comes_back_to_who_asked(spec):
    with Serving(make_server(spec, batch_size=1)) as server:
        begin = (np.zeros((1, 2), np.uint32), 0, 0)
        with pytest.raises(Exception, match="shape"):
            server.infer("b", "x", 0, [np.ones((1, 999), np.float32)], np.ones(1, bool), begin)
        actor = make_actor(server, spec)
        actor.select_action(one(spec))
        with pytest.raises(ValueError, match="a has 1 rows, not 2"):
            server.infer("a", actor._session, 1, [np.ones((2, 4))], np.ones(2, bool))


def test_nobody_waits_for_ever(spec):
    begin = (np.zeros((1, 2), np.uint32), 0, 0)
    with pytest.raises(TimeoutError, match=r"no action within 0.01 s"):
        make_server(spec, batch_size=1).infer(
            "a", "x", 0, [np.ones((1, 4))], np.ones(1, bool), begin, 0.01
        )


@pytest.mark.parametrize(
    ("option", "value"), [("batch_size", 0), ("wait_seconds", -1.0), ("capacity", 0)]
)
def test_settings_out_of_range_are_refused(spec, option, value):
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        make_server(spec, **{"batch_size": 1, option: value})
