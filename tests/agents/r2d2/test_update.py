"""R2D2's losses and priorities are those of rows taken one by one; its blocks are steps in turn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import StepType, specs

from troupe.agents.programs import dispatch
from troupe.agents.r2d2 import R2D2Builder, R2D2Config
from troupe.agents.replay.items import Sample, SampleInfo, Sequence
from troupe.environments.specs import EnvironmentSpec

BURN_IN, LENGTH, N_STEP, ACTIONS, B = 2, 4, 2, 3, 4
T = BURN_IN + LENGTH + 1
SMALL = {
    "core_size": 5,
    "hidden_sizes": (4, 6),
    "burn_in": BURN_IN,
    "sequence_length": LENGTH,
    "sequence_period": LENGTH,
    "n_step": N_STEP,
    "discount": 0.9,
}
NUMBER = specs.Array((), np.float32)
SPEC = EnvironmentSpec(specs.Array((3,), np.float32), specs.DiscreteArray(ACTIONS), NUMBER, NUMBER)


def make(**config):
    builder = R2D2Builder(R2D2Config(**{**SMALL, **config}))
    network = builder.make_networks(SPEC)
    return builder, network, builder.make_update(network, SPEC)


def samples(builder, network, *leading, seed=0):
    """Windows: one from the middle, one from the start, and two that end, truncated and not."""
    rng = np.random.default_rng(seed)
    numbers = lambda *last: rng.normal(size=(*leading, B, *last)).astype(np.float32)  # noqa: E731
    policy = builder.make_policy(network, SPEC)
    state = policy.init(jax.random.key(0))
    extras = jax.tree.map(lambda x: numbers(T, *x.shape), policy.get_extras(state, state))
    spread = lambda x: np.broadcast_to(x, (*leading, B, T))  # noqa: E731
    kinds = np.full((B, T), int(StepType.MID), np.int32)
    kinds[1, 0] = int(StepType.FIRST)
    kinds[2, 4:] = kinds[3, 5:] = int(StepType.LAST)
    mask = np.ones((B, T), np.float32)
    mask[2, 5:] = mask[3, 6:] = 0.0
    discount = np.ones((B, T), np.float32)
    discount[3, 4] = 0.0
    data = Sequence(
        numbers(T, 3),
        rng.integers(0, ACTIONS, (*leading, B, T)).astype(np.int32),
        10.0 * numbers(T),
        spread(discount),
        spread(kinds),
        spread(mask),
        extras,
    )
    info = SampleInfo(
        None,
        rng.uniform(0.1, 1, (*leading, B)).astype(np.float32),
        np.full((*leading, B), 50, np.float32),
    )
    return Sample(info, data)


def rescale(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def unscale(x):
    low, high = -1e6, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rescale(middle) < x else (low, middle)
    return low


def row_by_row(network, params, target_params, data, rescaling):
    """{row: error} of each sequence, by following the rows from the stored memory."""
    found = []
    for b in range(B):
        values = []
        for p in (params, target_params):
            memory, said = jax.tree.map(lambda x, b=b: x[b, 0], data.extras.memory), []
            for t in range(T):
                if data.step_type[b, t] == StepType.FIRST:
                    memory = network.initial_state
                q, memory = network.step(p, data.observation[b, t], memory)
                said.append(np.asarray(q, np.float64))
            values.append(said)
        online, target = values
        last = int(data.mask[b].sum()) - 1
        first = 0 if data.step_type[b, 0] == StepType.FIRST else BURN_IN
        errors = {}
        for t in range(first, last):
            total, factor, at = 0.0, 1.0, t
            while at < min(t + N_STEP, last):
                total += factor * float(data.reward[b, at])
                factor *= 0.9 * float(data.discount[b, at])
                at += 1
            following = target[at][np.argmax(online[at])]
            goal = total + factor * (unscale(following) if rescaling else following)
            goal = rescale(goal) if rescaling else goal
            errors[t] = goal - online[t][data.action[b, t]]
        found.append(errors)
    return found


@pytest.mark.parametrize("rescaling", [True, False])
def test_losses_and_priorities_are_those_of_rows_one_by_one(rescaling):
    builder, network, update = make(value_rescaling=rescaling, importance_exponent=1.0)
    sample = samples(builder, network)
    state = update.init(jax.random.key(0))
    state = state._replace(target_params=network.init(jax.random.key(1)))
    after, output = jax.jit(update.step)(state, sample)
    errors = row_by_row(network, state.params, state.target_params, sample.data, rescaling)
    assert [sorted(e) for e in errors] == [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [2, 3], [2, 3, 4]]
    sizes = [np.abs([*e.values()]) for e in errors]
    expected = [0.9 * s.max() + 0.1 * s.mean() + 1e-6 for s in sizes]
    np.testing.assert_allclose(output.priorities, expected, rtol=1e-3)
    weights = 1 / sample.info.probabilities
    weights /= weights.max()
    squares = sum(w * np.sum(s**2) / 2 for w, s in zip(weights, sizes, strict=True))
    count = sum(map(len, sizes))
    assert float(output.metrics["loss"]) == pytest.approx(squares / count, rel=1e-3)
    assert int(after.steps) == 1


def test_steps_in_blocks_are_steps_in_turn():
    builder, network, update = make(target_update_period=4, learning_rate=0.05)
    in_turn, in_blocks = jax.jit(dispatch.fuse(update.step, 8)), jax.jit(update.steps(8))
    expected = actual = update.init(jax.random.key(0))
    for seed in range(2):
        batches = samples(builder, network, 8, seed=seed)
        (expected, outputs), (actual, found) = (
            in_turn(expected, batches),
            in_blocks(actual, batches),
        )
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4),
            (actual, found),
            (expected, outputs),
        )


def test_the_chance_of_a_random_action_falls_from_stream_to_stream():
    builder, network, _ = make(epsilon_end=0.4, epsilon_decay_steps=0, epsilon_exponent=3.0)
    params = network.init(jax.random.key(0))
    policy = builder.make_policy(network, SPEC, num_streams=3)
    judged = builder.make_policy(network, SPEC, evaluation=True)
    observation = np.ones(3, np.float32)

    def action(policy, key, stream=None):
        state = policy.init(key)
        state = state if stream is None else policy.set_stream(state, stream)
        return policy.select_action(params, observation, state)[0]

    keys = jax.random.split(jax.random.key(1), 6_000)
    (best,) = {*np.asarray(jax.vmap(lambda key: action(judged, key))(keys)).tolist()}
    for stream, power in enumerate((1.0, 2.5, 4.0)):
        actions = jax.vmap(lambda key, s=stream: action(policy, key, jnp.int32(s)))(keys)
        share = float(np.mean(np.asarray(actions) != best)) * ACTIONS / (ACTIONS - 1)
        assert share == pytest.approx(0.4**power, abs=0.03)
