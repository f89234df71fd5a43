"""A server whose actors share slots: the answers of acting alone, and clients that get lost."""

import functools
import threading

import jax
import numpy as np
import pytest
from dm_env import specs

from troupe.agents import GenericActor, VariableClient
from troupe.agents.acting.remote import RemoteActor
from troupe.agents.generation.policy import answering
from troupe.agents.generation.server import GenerationServer, make_server

from .tiny import PAD, answer_spec, decoder, prompts

N, G, T, P = 3, 2, 8, 6
MODEL = decoder()
ANSWER = answer_spec((G, T))
OBSERVATIONS = {
    "prompt": specs.Array((P,), np.int32),
    "scores": specs.Array((G,), np.float32),
    "solution": specs.Array((T,), np.int32),
}
POLICY = answering(MODEL, ANSWER, supervised_steps=5)


class Source:
    version = 0

    def __init__(self, steps=7):
        self.params = {"decoder": MODEL.init(jax.random.key(0)), "steps": np.int32(steps)}

    def get_variables(self, names=("policy",)):
        return [self.params for _ in names]


class Kept:
    """An adder that nobody reads."""

    def add_first(self, timestep):
        pass

    def add(self, action, timestep, extras=()):
        pass


class Serving:
    def __init__(self, source=None, **options):
        options = {"batch_size": 2, **options}
        self.server = make_server(
            POLICY, VariableClient(source or Source()), OBSERVATIONS, **options
        )
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            self.server.serve_once(0.05)

    def __enter__(self):
        self.thread.start()
        return self.server

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def seen(seed=0, count=N):
    solution = np.tile(np.array([5, 6, 1, 0, 0, 0, 0, 0], np.int32), (count, 1))
    scores = np.zeros((count, G), np.float32)
    return {"prompt": prompts(count, P, seed), "scores": scores, "solution": solution}


def far(infer, seed, name="a"):
    return RemoteActor(
        POLICY,
        jax.random.key(seed),
        functools.partial(infer, name),
        ANSWER,
        Kept(),
        num_envs=N,
    )


def near(seed, source=None):
    client = VariableClient(source or Source())
    return GenericActor(POLICY, jax.random.key(seed), client, Kept(), num_envs=N)


def assert_alike(one, other, observation):
    actions = [actor.select_action(observation) for actor in (one, other)]
    np.testing.assert_array_equal(*actions)
    one, other = one._extras, other._extras
    np.testing.assert_array_equal(one["steps"], other["steps"])
    np.testing.assert_allclose(one["log_probs"], other["log_probs"], atol=1e-5)
    assert jax.tree.map(lambda x: x.dtype, one) == jax.tree.map(lambda x: x.dtype, other)


def test_several_actors_get_the_answers_of_acting_alone():
    with Serving() as server:
        assert isinstance(server, GenerationServer)
        failures = []

        def act(i):
            try:
                one, other = far(server.infer, i, str(i)), near(i)
                for step in range(3):
                    observation = seen(10 * i + step)
                    observation["prompt"][1] = PAD if step == 1 else observation["prompt"][1]
                    assert_alike(one, other, observation)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=act, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert server.rows == 3 * 3 * N
        assert not server._pending


def test_supervised_steps_need_no_slot():
    source = Source(steps=4)
    with Serving(source) as server:
        assert_alike(far(server.infer, 0), near(0, source), seen())
        assert server.calls == 0


def test_a_request_that_is_repeated_draws_once():
    with Serving() as server:

        def twice(*request):
            answers = [server.infer(*request) for _ in range(2)]
            assert answers[0] is answers[1]
            return answers[0]

        one, other = far(twice, 0), near(0)
        for step in range(2):
            assert_alike(one, other, seen(step))
        assert server.rows == 2 * N


def test_a_server_that_was_lost_goes_on_with_the_same_draws():
    with Serving() as first, Serving() as second:
        asked = iter([first] * 2 + [second] * 9)
        one, other = far(lambda *request: next(asked).infer(*request), 0), near(0)
        for step in range(4):
            assert_alike(one, other, seen(step))


def test_a_client_that_is_replaced_gives_its_slots_back():
    serving = Serving()
    server, errors = serving.server, []

    def ask(actor):
        try:
            actor.select_action(seen())
        except RuntimeError as error:
            errors.append(str(error))

    lost = threading.Thread(target=ask, args=(far(server.infer, 0),))
    lost.start()
    while not server._queue:
        pass
    server._batch.take(Source().params)
    server._batch.turn, turn = lambda: [], server._batch.turn
    server.serve_once(1.0)  # Its prompts wait.
    assert len(server._pending) == 1
    server._batch.turn = turn
    with serving:
        assert_alike(far(server.infer, 1), near(1), seen(1))
        lost.join()
    assert server.rows == N
    assert len(errors) == 1
    assert "another session has taken the place of" in errors[0]


def test_what_fails_forgets_those_who_wait_and_serves_on():
    with Serving() as server:
        advance = server._batch._advance

        def fail(params, slots, *rest):
            jax.tree.map(lambda x: x.delete(), slots)
            server._batch._advance = advance
            raise ValueError("no memory")

        one = far(server.infer, 0)
        server._batch._advance = fail
        with pytest.raises(ValueError, match="no memory"):
            one.select_action(seen())
        assert not server._sessions
        assert_alike(far(server.infer, 0), near(0), seen())
