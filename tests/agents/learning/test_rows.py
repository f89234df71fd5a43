"""Rows of windows are learned from as the transitions that they are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.acting.policies import RecurrentExtras
from troupe.agents.learning import rows
from troupe.agents.replay.items import Sequence, Transition
from troupe.agents.sac import SACConfig

B, T = 3, 8
CONFIG = SACConfig(core="gru", burn_in=2, sequence_length=5, sequence_period=5, discount=0.9)
RANDOM = np.random.default_rng(0)
STEP_TYPE = np.ones((B, T), np.int32)
STEP_TYPE[1, 0] = 0  # The second window begins an episode, and ends it within.
STEP_TYPE[1, 4] = 2
MASK = np.ones((B, T), np.float32)
MASK[1, 5:] = 0.0


def windows():
    zeros = np.zeros((B, T, 4), np.float32)
    return Sequence(
        RANDOM.normal(size=(B, T, 2)).astype(np.float32),
        RANDOM.normal(size=(B, T, 1)).astype(np.float32),
        RANDOM.normal(size=(B, T)).astype(np.float32) * (STEP_TYPE != 2),
        np.where(RANDOM.random((B, T)) < 0.2, 0.0, 1.0).astype(np.float32),
        STEP_TYPE,
        MASK,
        RecurrentExtras(zeros, ()),
    )


def test_rows_behind_the_burn_in_are_learned_from_and_all_of_an_episodes_first_window():
    mask = rows.learned_rows(windows(), CONFIG).mask.reshape(B, T)
    assert mask[0].tolist() == mask[2].tolist() == [0, 0, 1, 1, 1, 1, 1, 0]
    assert mask[1].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_are_those_of_transitions(n_step):
    config = SACConfig(**{**vars(CONFIG), "n_step": n_step})
    data, values = windows(), RANDOM.normal(size=(B, T)).astype(np.float32)
    found = (
        rows.learned_rows(data, config)
        .targets(jnp.asarray(values).reshape(-1), config)
        .reshape(B, T)
    )
    mask = np.asarray(rows.learned_rows(data, config).mask).reshape(B, T)
    for window, row in np.argwhere(mask > 0):
        total, factor, at = 0.0, 1.0, row
        for _ in range(n_step):
            if STEP_TYPE[window, at] == 2 or at == T - 1:
                break
            total += factor * data.reward[window, at]
            factor *= config.discount * data.discount[window, at]
            at += 1
        expected = total + factor * values[window, at]
        np.testing.assert_allclose(found[window, row], expected, rtol=1e-5, atol=1e-6)


def test_means_are_over_rows_that_are_learned_from():
    found = rows.learned_rows(windows(), CONFIG)
    x = RANDOM.normal(size=(2, B * T)).astype(np.float32)
    learned = np.asarray(found.mask) > 0
    np.testing.assert_allclose(found.mean(jnp.asarray(x)), x[:, learned].mean(), rtol=1e-5)


def test_transitions_are_all_learned_from():
    ones = np.ones(4, np.float32)
    data = Transition(ones[:, None], ones[:, None], ones, 0.5 * ones, 2 * ones[:, None])
    found = rows.learned_rows(data, SACConfig())
    assert found.mask is None
    assert found.following is data.next_observation
    targets = found.targets(jnp.full(4, 3.0), SACConfig(discount=0.8))
    np.testing.assert_allclose(targets, 1.0 + 0.8 * 0.5 * 3.0)
    assert jax.tree.leaves(found.observation)[0] is data.observation
