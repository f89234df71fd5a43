"""MuZero's model and values, of an episode that is known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import StepType, specs

from troupe.agents.muzero import MuZeroBuilder, MuZeroConfig
from troupe.agents.muzero.networks import expected, make_atoms
from troupe.agents.muzero.search import make_search
from troupe.agents.replay.items import Sample, SampleInfo, Sequence
from troupe.environments.specs import EnvironmentSpec

LENGTH, BATCH = 4, 8  # Steps of the episode; rows are one more, and one of padding.
NUMBER = specs.Array((), np.float32)
SPEC = EnvironmentSpec(
    specs.Array((LENGTH + 1,), np.float32), specs.DiscreteArray(2), NUMBER, NUMBER
)
SMALL = {
    **{"hidden_sizes": (32,), "state_size": 16, "num_simulations": 4, "unroll_steps": 3},
    **{"sequence_length": LENGTH + 1, "sequence_period": LENGTH + 1, "learning_rate": 1e-2},
    **{"discount": 0.9, "target_update_period": 20, "min_return": -20.0, "max_return": 20.0},
}
ATOMS = make_atoms(MuZeroConfig(**SMALL))


def sample(final_discount):
    """Episodes of four steps with a reward of 1 each, whose actions are drawn."""
    rng = np.random.default_rng(0)
    rows = np.eye(LENGTH + 1, dtype=np.float32)
    one = lambda *x: np.tile(np.asarray(x), (BATCH, 1))  # noqa: E731
    data = Sequence(
        observation=np.tile(np.concatenate([rows, 0 * rows[:1]]), (BATCH, 1, 1)),
        action=rng.integers(0, 2, (BATCH, LENGTH + 2)).astype(np.int32),
        reward=one(*[1.0] * LENGTH, 0.0, 0.0).astype(np.float32),
        discount=one(*[1.0] * (LENGTH - 1), final_discount, 0.0, 0.0).astype(np.float32),
        step_type=one(0, *[1] * (LENGTH - 1), *[int(StepType.LAST)] * 2).astype(np.int32),
        mask=one(*[1.0] * (LENGTH + 1), 0.0).astype(np.float32),
        extras={"policy": np.tile(np.float32([0.2, 0.8]), (BATCH, LENGTH + 2, 1))},
    )
    info = SampleInfo(None, np.full(BATCH, 0.1, np.float32), np.full(BATCH, 50, np.float32))
    return Sample(info, data)


@functools.cache
def make(n_step, reanalyse, priority_exponent=None, entropy_cost=0.0):
    """Networks, config, and `init` and `step` compiled."""
    builder = MuZeroBuilder(
        MuZeroConfig(
            **SMALL,
            n_step=n_step,
            reanalyse=reanalyse,
            priority_exponent=priority_exponent,
            entropy_cost=entropy_cost,
        )
    )
    networks = builder.make_networks(SPEC)
    update = builder.make_update(networks, SPEC)
    return networks, builder.config, update.init, jax.jit(update.step)


@functools.cache
def learned_of_episodes(final_discount, *options):
    """The outcome of 400 gradient steps on such episodes."""
    return learned(sample(final_discount), 400, *options)


def learned(batch, steps, *options):
    """The state after so many gradient steps on one batch, and the output of the last."""
    _, _, init, step = make(*options)
    state = init(jax.random.key(1))
    for _ in range(steps):
        state, output = step(state, batch)
    return state, output


@pytest.mark.parametrize(("n_step", "reanalyse"), [(1, True), (10, False)])
def test_values_are_the_returns_until_the_end(n_step, reanalyse):
    batch = sample(final_discount=0.0)
    networks, *_ = make(n_step, reanalyse)
    state, output = learned_of_episodes(0.0, n_step, reanalyse)
    rows = jnp.asarray(batch.data.observation[0, :LENGTH])
    hidden = networks.representation.apply(state.params.representation, rows)
    logits, of_return = networks.prediction.apply(state.params.prediction, hidden)
    wanted = [sum(0.9**i for i in range(LENGTH - row)) for row in range(LENGTH)]
    np.testing.assert_allclose(expected(of_return, ATOMS), wanted, atol=0.25)
    assert float(output.metrics["continuation_loss"]) < 0.05
    assert float(output.metrics["reward_loss"]) < 0.7  # Two atoms share a reward of 1.
    if not reanalyse:  # The policy is that of the actor's searches.
        np.testing.assert_allclose(jax.nn.softmax(logits)[:, 1], 0.8, atol=0.05)


def test_an_entropy_bonus_keeps_policies_from_being_as_sure_as_searches():
    """p - 0.8 + cost p (1 - p) log(p / (1 - p)) = 0, the derivative of the loss, at p = 0.709."""
    batch = sample(final_discount=0.0)
    networks, *_ = make(10, False, None, 0.5)
    state, output = learned(batch, 400, 10, False, None, 0.5)
    rows = jnp.asarray(batch.data.observation[0, :LENGTH])
    hidden = networks.representation.apply(state.params.representation, rows)
    logits, _ = networks.prediction.apply(state.params.prediction, hidden)
    np.testing.assert_allclose(jax.nn.softmax(logits)[:, 1], 0.709, atol=0.02)
    entropy = -0.709 * np.log(0.709) - 0.291 * np.log(0.291)
    assert float(output.metrics["entropy"]) == pytest.approx(entropy, abs=0.02)


def test_episodes_cut_short_are_bootstrapped_from():
    """What follows the last row, which is never learned from, is what the model makes of it."""
    networks, config, _, _ = make(1, True)
    search = jax.jit(functools.partial(make_search(networks, config), gumbel_scale=0.0))
    for final_discount in (0.0, 1.0):
        batch = sample(final_discount)
        state, _ = learned_of_episodes(final_discount, 1, True)
        before, last = jnp.asarray(batch.data.observation[0, LENGTH - 1 : LENGTH + 1])
        hidden = networks.representation.apply(state.params.representation, before[None])
        value = expected(networks.prediction.apply(state.params.prediction, hidden)[1], ATOMS)
        following = search(state.target_params, last[None], key=jax.random.key(0)).value
        if not final_discount:
            assert float(value[0]) == pytest.approx(1.0, abs=0.2)
        else:  # That grows with every target, as it is learned of from the row before.
            assert abs(float(value[0]) - 1.0) > 0.5
            assert (float(value[0]) > 1.0) == (float(following[0]) > 0.0)


def test_rows_that_are_padding_change_nothing():
    batch = sample(final_discount=0.0)
    padded = batch.data._replace(action=batch.data.action.copy(), reward=batch.data.reward.copy())
    padded.action[:, LENGTH:], padded.reward[:, LENGTH:] = 1, 100.0
    results = [learned(x, 3, 1, True) for x in (batch, batch._replace(data=padded))]
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_priorities_are_the_errors_of_the_values():
    _, output = learned(sample(final_discount=0.0), 1, 10, False, 0.5)
    # At first all values are those of even logits: 0. The targets are the returns.
    errors = np.array([3.439, 2.71, 1.9, 1.0])
    np.testing.assert_allclose(output.priorities[0], 0.9 * 3.439 + 0.1 * errors.mean(), rtol=1e-3)
