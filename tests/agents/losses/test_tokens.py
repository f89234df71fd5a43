"""Losses of tokens against numbers worked out by hand.

Two groups of four answers: one in which answers differ and one in which all are alike.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import tokens

SCORES = jnp.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])
MASK = jnp.array([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])  # Answers of 3 tokens and of 1.


def close(found, wanted):
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("leave_one_out", "normalize", "wanted"),
    [
        # The mean is 1/2 and so is the deviation; the mean of the other three is 1/3 or 2/3.
        (False, False, [0.5, -0.5, -0.5, 0.5]),
        (False, True, [1.0, -1.0, -1.0, 1.0]),
        (True, False, [2 / 3, -2 / 3, -2 / 3, 2 / 3]),
        (True, True, [4 / 3, -4 / 3, -4 / 3, 4 / 3]),
    ],
)
def test_advantages_compare_with_the_group(leave_one_out, normalize, wanted):
    found = tokens.group_advantages(SCORES, leave_one_out=leave_one_out, normalize=normalize)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
    close(found[1], [0.0] * 4)


def test_leave_one_out_is_the_mean_of_the_others():
    score = np.array([0.3, 0.1, 0.9, 0.2, 0.5], np.float32)
    wanted = [score[i] - np.delete(score, i).mean() for i in range(5)]
    close(tokens.group_advantages(score, leave_one_out=True, normalize=False), wanted)


def test_groups_of_equal_scores_are_told():
    close(tokens.scores_differ(SCORES), [1.0, 0.0])


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens():
    log_ratio = jnp.log(jnp.array([[2.0, 4.0, 8.0, 100.0], [0.5, 100.0, 100.0, 100.0]]))
    # (2 * 4 * 8)^(1/3) = 4, and the one token of the other.
    close(jnp.exp(tokens.sequence_log_ratio(log_ratio, MASK)), [[4.0] * 4, [0.5] * 4])
    gradient = jax.grad(lambda x: tokens.sequence_log_ratio(x, MASK)[0, 0])(log_ratio)
    close(gradient, [[1 / 3, 1 / 3, 1 / 3, 0.0], [0.0] * 4])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.25, 2.0, -2.5, -2.5),  # Below 1.3: rewarded.
        (1.5, 2.0, -2.6, 0.0),  # 1.3 * 2, and no reward for more.
        (1.5, -2.0, 3.0, 3.0),
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),  # 0.8 * 2.
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_the_surrogate_is_clipped_at_either_side(ratio, advantage, loss, gradient):
    def of(log_ratio):
        return tokens.clipped_surrogate(log_ratio, jnp.float32(advantage), 0.2, 0.3)

    found = jax.value_and_grad(of)(jnp.log(jnp.float32(ratio)))
    close(found, (loss, gradient))


@pytest.mark.parametrize(("ratio", "weight"), [(1.25, 1.25), (5.0, 1.3), (0.5, 0.8), (0.9, 0.9)])
def test_a_clipped_weight_keeps_the_gradient_of_every_token(ratio, weight):
    advantage, old = jnp.float32(-2.0), jnp.log(0.1)

    def of(log_prob):
        return tokens.clipped_weight(log_prob, log_prob - old, advantage, 0.2, 0.3)

    log_prob = old + jnp.log(jnp.float32(ratio))
    loss, gradient = jax.value_and_grad(of)(log_prob)
    close(gradient, weight * 2.0)
    close(loss, weight * 2.0 * log_prob)


def test_a_lower_clip_of_one_is_none():
    log_ratio = jnp.log(jnp.float32(1e-3))
    close(tokens.clipped_weight(jnp.float32(-1), log_ratio, jnp.float32(1), 1.0, 0.2), 1e-3)


@pytest.mark.parametrize(("kind", "wanted"), [("clip", -2.6), ("cispo", -3.9), ("reinforce", -3.0)])
def test_a_loss_is_named(kind, wanted):
    log_prob, ratio, advantage = jnp.float32(1.5), jnp.log(jnp.float32(1.5)), jnp.float32(2.0)
    # 1.3 * 2, 1.3 * 2 * 1.5 and 2 * 1.5.
    close(tokens.of_each_token(kind, log_prob, ratio, advantage, 0.2, 0.3), wanted)


def test_the_length_of_answers_is_that_of_those_that_have_one():
    close(tokens.mean_length(jnp.concatenate([MASK, jnp.zeros_like(MASK)])), 2.0)


def test_ratios_beyond_the_clips_are_told():
    log_ratio = jnp.log(jnp.array([0.7, 0.9, 1.0, 1.25, 1.35]))
    close(tokens.is_clipped(log_ratio, 0.2, 0.3), [1.0, 0.0, 0.0, 0.0, 1.0])


def test_the_divergence_is_estimated_at_what_was_drawn():
    # r - 1 - log r with r the reference's probability by the policy's: 2 - 1 - log 2.
    found = tokens.kl_to_reference(jnp.log(jnp.array([0.25, 0.5])), jnp.log(jnp.array([0.5, 0.5])))
    close(found, [1.0 - math.log(2.0), 0.0])


def test_the_estimate_is_the_divergence_in_the_mean():
    policy, reference = np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1])
    exact = (policy * np.log(policy / reference)).sum()
    found = tokens.kl_to_reference(jnp.log(jnp.array(policy)), jnp.log(jnp.array(reference)))
    close((policy * np.asarray(found)).sum(), exact)


def test_importance_is_cut_and_has_no_gradient():
    learner, sampler = jnp.log(jnp.array([0.2, 0.9, 0.1])), jnp.log(jnp.array([0.1, 0.1, 0.2]))
    close(tokens.truncated_importance(learner, sampler, 3.0), [2.0, 3.0, 0.5])
    gradient = jax.grad(lambda x: tokens.truncated_importance(x, sampler, 3.0).sum())(learner)
    close(gradient, [0.0] * 3)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    # 3 + 6 + 9 = 18 and 2. Of 4 tokens: 5. Of answers: (6 + 2) / 2. By length: (18 + 2) / 4 / 2.
    [("token", 5.0), ("sequence", 4.0), ("length", 2.5)],
)
def test_means_are_of_tokens_or_of_answers(kind, wanted):
    x = jnp.array([[3.0, 6.0, 9.0, 77.0], [2.0, 77.0, 77.0, 77.0]])
    close(tokens.mean(x, MASK, kind), wanted)
    close(tokens.mean(x, jnp.zeros_like(MASK), kind), 0.0)
    # An answer that is left out leaves the mean of the rest.
    left = tokens.mean(x, MASK.at[0].set(0.0), kind)
    close(left, 2.0 / 4 if kind == "length" else 2.0)
