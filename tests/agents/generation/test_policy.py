"""The policy of answers: in actors, servers and evaluators, on one device or over a mesh."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe import partitioning
from troupe.agents import ActorCore, GenericActor, VariableClient
from troupe.agents.acting import policies
from troupe.agents.acting.inference import InferenceServer
from troupe.agents.acting.remote import RemoteActor
from troupe.agents.generation.policy import answering
from troupe.agents.generation.sampling import Sampling
from troupe.agents.programs.placement import Partition
from troupe.agents.programs.policy import PolicyProgram

from .tiny import PAD, answer_spec, decoder, prompts, whole_log_probs

N, G, T, P = 4, 2, 6, 6
MODEL = decoder()
ANSWER = answer_spec((G, T))
PARAMS = {"decoder": MODEL.init(jax.random.key(0)), "steps": np.int32(7)}
OBSERVATIONS = {"prompt": specs.Array((P,), np.int32), "solution": specs.Array((T,), np.int32)}
ACTIONS = specs.BoundedArray((G, T), np.int32, 0, 17)
NOT_FIRST = np.zeros(N, bool)


class Source:
    version = 0

    def get_variables(self, names=("policy",)):
        return [PARAMS for _ in names]


class Kept:
    """An adder that keeps what it is given."""

    def __init__(self):
        self.extras = []

    def add_first(self, timestep):
        pass

    def add(self, action, timestep, extras=()):
        self.extras.append(extras)


def observations(seed=0):
    solution = np.tile(np.array([5, 6, 1, 0, 0, 0], np.int32), (N, 1))
    return {"prompt": prompts(N, P, seed), "solution": solution}


def program(policy, **options):
    made = PolicyProgram(policy, N, **options)
    made.init(jax.random.split(jax.random.key(3), N))
    return made


def test_extras_are_what_the_sampler_said():
    policy = answering(MODEL, ANSWER)
    actions = program(policy)
    seen = [observations(0), observations(1)]
    found = [actions(PARAMS, one, NOT_FIRST) for one in seen]
    for one, (tokens, extras) in zip(seen, found, strict=True):
        expected = whole_log_probs(MODEL, PARAMS["decoder"], one["prompt"], tokens, ANSWER)
        np.testing.assert_allclose(extras["log_probs"], expected, atol=1e-5)
        np.testing.assert_array_equal(extras["steps"], np.full(N, 7))
    # Another step, another draw; and answers of a group differ.
    again, _ = actions(PARAMS, seen[1], NOT_FIRST)
    assert (again != found[1][0]).any()
    assert (again[:, 0] != again[:, 1]).any()


def test_streams_answer_alike_in_any_batch_and_after_a_resume():
    policy = answering(MODEL, ANSWER)
    whole, seen = program(policy), [observations(seed) for seed in range(3)]
    expected = [whole(PARAMS, one, NOT_FIRST)[0] for one in seen]
    keys = jax.random.split(jax.random.key(3), N)
    half = PolicyProgram(policy, 2)
    half.init(keys[2:])
    first = {name: leaf[2:] for name, leaf in seen[0].items()}
    np.testing.assert_array_equal(half(PARAMS, first, NOT_FIRST[2:])[0], expected[0][2:])
    alone = jax.jit(policy.select_action)
    state = policy.init(keys[1])
    for one, tokens in zip(seen, expected, strict=True):
        chosen, state = alone(PARAMS, jax.tree.map(lambda x: x[1], one), state)
        np.testing.assert_array_equal(chosen, tokens[1])
    resumed = program(policy)
    resumed.change(jax.vmap(policy.set_num_actions, (0, None)), jnp.int32(2))
    np.testing.assert_array_equal(resumed(PARAMS, seen[2], NOT_FIRST)[0], expected[2])


def test_before_the_supervised_steps_are_over_the_solution_is_the_answer():
    policy, seen = answering(MODEL, ANSWER, supervised_steps=8), observations()
    actions, plain = program(policy), program(answering(MODEL, ANSWER))
    tokens, extras = actions(PARAMS, seen, NOT_FIRST)
    np.testing.assert_array_equal(tokens, np.repeat(seen["solution"][:, None], G, 1))
    assert (extras["log_probs"] == 0).all()
    assert (extras["steps"] == 7).all()
    plain(PARAMS, seen, NOT_FIRST)
    later = {**PARAMS, "steps": np.int32(8)}
    tokens, extras = actions(later, seen, NOT_FIRST)
    np.testing.assert_array_equal(tokens, plain(later, seen, NOT_FIRST)[0])
    assert (extras["steps"] == 8).all()
    assert (extras["log_probs"] < 0).any()


def test_evaluations_are_greedy():
    tokens, _ = program(answering(MODEL, ANSWER, Sampling(0)))(PARAMS, observations(), NOT_FIRST)
    other = PolicyProgram(answering(MODEL, ANSWER, Sampling(0)), N)
    other.init(jax.random.split(jax.random.key(9), N))
    np.testing.assert_array_equal(tokens, other(PARAMS, observations(), NOT_FIRST)[0])
    np.testing.assert_array_equal(tokens[:, 0], tokens[:, 1])


@pytest.mark.parametrize(
    ("axes", "schedule"),
    [
        ({"data": 2}, "batch:data"),
        ({"model": 2}, "megatron:model"),
        ({"data": 2, "model": 2}, "batch:data,megatron:model"),
    ],
)
def test_a_mesh_answers_as_one_device(axes, schedule):
    policy, seen = answering(MODEL, ANSWER), observations()
    mesh = partitioning.Mesh(axes)
    partition = Partition(mesh, partitioning.parse_schedule(schedule))
    tokens, extras = program(policy, device=partition)(PARAMS, seen, NOT_FIRST)
    expected, likewise = program(policy)(PARAMS, seen, NOT_FIRST)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(extras["log_probs"], likewise["log_probs"], atol=1e-5)


def test_actors_of_a_server_answer_as_those_that_hold_parameters():
    policy, seen = answering(MODEL, ANSWER), observations()
    server = InferenceServer(policy, VariableClient(Source()), OBSERVATIONS, batch_size=N)
    stop, kept = threading.Event(), [Kept(), Kept()]

    def serve():
        while not stop.is_set():
            server.serve_once(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        infer = functools.partial(server.infer, "a")
        key = jax.random.key(5)
        far = RemoteActor(policy, key, infer, ACTIONS, kept[0], num_envs=N)
        near = GenericActor(policy, key, VariableClient(Source()), kept[1], num_envs=N)
        for _ in range(2):
            actions = [actor.select_action(seen) for actor in (far, near)]
            np.testing.assert_array_equal(*actions)
            assert (far._extras["steps"] == 7).all()
            np.testing.assert_allclose(
                far._extras["log_probs"], near._extras["log_probs"], atol=1e-5
            )
    finally:
        stop.set()
        thread.join()


def test_a_policy_of_batches_is_one_call_for_all_streams_whatever_wraps_it():
    calls = []

    def select_actions(params, observation, state):
        jax.debug.callback(lambda x: calls.append(x.shape), observation)
        return params * observation + state, state + 1

    core = ActorCore(lambda key: jnp.zeros(()), policies.batched(select_actions))

    def scaled(params, observation, state):
        return core.select_action(params, 10 * observation, state)

    wrapped = policies.batch(core._replace(select_action=scaled))
    action, _, state = wrapped(2.0, jnp.arange(3.0), jnp.zeros(3), NOT_FIRST[:3])
    np.testing.assert_array_equal(action, [0, 20, 40])
    np.testing.assert_array_equal(state, [1, 1, 1])
    jax.effects_barrier()
    assert calls == [(3,)]
    # Streams with parameters of their own take turns.
    each = jax.vmap(core.select_action)(jnp.arange(3.0), jnp.ones(3), jnp.zeros(3))
    np.testing.assert_array_equal(each[0], [0, 1, 2])
    # What does not differ between streams is each one's.
    same = jax.vmap(core.select_action, (None, None, 0))(2.0, jnp.ones(()), jnp.arange(3.0))
    np.testing.assert_array_equal(same[0], [2, 3, 4])
    assert core.select_action(2.0, jnp.ones(()), jnp.ones(()))[0] == 3


def test_an_answer_to_no_prompt_is_padding():
    seen = observations()
    seen["prompt"][1] = PAD
    tokens, extras = program(answering(MODEL, ANSWER))(PARAMS, seen, NOT_FIRST)
    assert (tokens[1] == PAD).all()
    assert (extras["log_probs"][1] == 0).all()
    assert (tokens[0] != PAD).any()
