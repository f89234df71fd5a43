"""Losses of policies that write tokens, learned from groups of answers to one prompt.

Letters: G answers of a group, T tokens of an answer; `...`: prompts, if any. Probabilities are
logarithms, masks 1 for tokens that count and 0 for others.
"""

from __future__ import annotations

from typing import Literal

import chex
import jax
import jax.numpy as jnp

from . import masks, policy

Loss = Literal["clip", "cispo", "reinforce"]
Mean = Literal["token", "sequence", "length"]
_LEAST_DEVIATION = 1e-6
"""Added to the deviation of a group, so that equal scores are not divided by 0."""


def group_advantages(
    score: jax.Array, *, leave_one_out: bool = False, normalize: bool = True
) -> jax.Array:
    """Compares each answer of a group with the others.

    GRPO (Shao et al., 2024, https://arxiv.org/abs/2402.03300, section 4.1.2) subtracts the mean of
    the group and divides by its deviation; Dr. GRPO (Liu et al., 2025,
    https://arxiv.org/abs/2503.20783) does not divide. The baseline of leave-one-out REINFORCE
    (Ahmadian et al., 2024, https://arxiv.org/abs/2402.14740) is the mean of the other answers.

    Args:
      score: [..., G].
      leave_one_out: compare an answer with the mean of the others, not of all; G is 2 or more.
      normalize: divide by the standard deviation of the group's scores.

    Returns:
      [..., G], without a gradient.
    """
    size = score.shape[-1]
    advantage = score - jnp.mean(score, axis=-1, keepdims=True)
    if normalize:
        advantage /= jnp.std(score, axis=-1, keepdims=True) + _LEAST_DEVIATION
    if leave_one_out:
        advantage *= size / (size - 1)
    return jax.lax.stop_gradient(advantage)


def scores_differ(score: jax.Array) -> jax.Array:
    """Tells groups that there is something to learn from.

    DAPO (Yu et al., 2025, https://arxiv.org/abs/2503.14476, section 3.2) drops the others.

    Args:
      score: [..., G].

    Returns:
      [...] float32: 0 where all scores of a group are equal, else 1.
    """
    return (jnp.max(score, axis=-1) > jnp.min(score, axis=-1)).astype(jnp.float32)


def sequence_log_ratio(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the log-ratio of whole answers by their length, in place of that of each token.

    GSPO (Zheng et al., 2025, https://arxiv.org/abs/2507.18071, equation 7).

    Args:
      log_ratio: [..., T] of new to old probabilities of each token.
      mask: [..., T].

    Returns:
      [..., T], the same at every token of an answer.
    """
    chex.assert_equal_shape([log_ratio, mask])
    mean = jnp.sum(mask * log_ratio, -1, keepdims=True) / _length(mask)
    return jnp.broadcast_to(mean, log_ratio.shape)


def clipped_surrogate(
    log_ratio: jax.Array, advantage: jax.Array, clip_low: float, clip_high: float
) -> jax.Array:
    """The clipped surrogate objective as a loss, with a bound for each side of 1.

    PPO's (Schulman et al., 2017, https://arxiv.org/abs/1707.06347) with the bounds of DAPO (Yu et
    al., 2025, https://arxiv.org/abs/2503.14476, section 3.1), where the upper may be further away
    so that unlikely tokens can become likely.

    Args:
      log_ratio: [...] of new to old probabilities.
      advantage: [...].
      clip_low: the ratio is rewarded down to 1 - clip_low,
      clip_high: and up to 1 + clip_high.

    Returns:
      [...] the loss of each.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def clipped_weight(
    log_prob: jax.Array,
    log_ratio: jax.Array,
    advantage: jax.Array,
    clip_low: float,
    clip_high: float,
) -> jax.Array:
    """REINFORCE weighted by the clipped ratio, through which no gradient flows.

    CISPO (MiniMax, 2025, https://arxiv.org/abs/2506.13585, section 3.1): where the surrogate's clip
    silences a token, here it bounds the weight and the token still learns. Published without a
    lower bound, which is a `clip_low` of 1.

    Args:
      log_prob: [...] of the token under the policy that learns.
      log_ratio: [...] of new to old probabilities.
      advantage: [...].
      clip_low: the weight is at least 1 - clip_low,
      clip_high: and at most 1 + clip_high.

    Returns:
      [...] the loss of each.
    """
    chex.assert_equal_shape([log_prob, log_ratio, advantage])
    weight = jnp.clip(jnp.exp(log_ratio), 1.0 - clip_low, 1.0 + clip_high)
    return -jax.lax.stop_gradient(weight) * advantage * log_prob


def of_each_token(
    kind: Loss,
    log_prob: jax.Array,
    log_ratio: jax.Array,
    advantage: jax.Array,
    clip_low: float,
    clip_high: float,
) -> jax.Array:
    """The loss of a kind.

    Args:
      kind: "clip": `clipped_surrogate`; "cispo": `clipped_weight`; "reinforce": the log-probability
        by the advantage (Williams, 1992, https://doi.org/10.1007/BF00992696), without a ratio.
      log_prob, log_ratio, advantage, clip_low, clip_high: as of these.

    Returns:
      [...]
    """
    if kind == "clip":
        return clipped_surrogate(log_ratio, advantage, clip_low, clip_high)
    if kind == "cispo":
        return clipped_weight(log_prob, log_ratio, advantage, clip_low, clip_high)
    return -advantage * log_prob


def is_clipped(log_ratio: jax.Array, clip_low: float, clip_high: float) -> jax.Array:
    """Returns [...] float32: 1 where the ratio is beyond the clips of these losses."""
    ratio = jnp.exp(log_ratio)
    return ((ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)).astype(jnp.float32)


def kl_to_reference(log_prob: jax.Array, reference_log_prob: jax.Array) -> jax.Array:
    """Estimates KL(policy, reference) at tokens that the policy drew.

    The term of GRPO (Shao et al., 2024, https://arxiv.org/abs/2402.03300, equation 4), never
    negative: the third estimate of http://joschu.net/blog/kl-approx.html.

    Args:
      log_prob: [...] of the token under the policy that learns.
      reference_log_prob: [...] under the reference.

    Returns:
      [...] in nats.
    """
    return policy.kl_estimate(reference_log_prob, log_prob)


def truncated_importance(
    log_prob: jax.Array, sampler_log_prob: jax.Array, greatest: float
) -> jax.Array:
    """Weighs tokens by how likely the learner would have drawn what the sampler drew.

    Truncated as by Ionides (2008), https://doi.org/10.1198/106186008X320456; between a sampler
    and a learner of one policy (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl), and
    between a policy and the older one that sampled (decoupled PPO; Hilton et al., 2022,
    https://arxiv.org/abs/2110.00641).

    Args:
      log_prob: [...] as the learner computes it.
      sampler_log_prob: [...] as it was when the token was drawn.
      greatest: the bound of the weight.

    Returns:
      [...], without a gradient.
    """
    chex.assert_equal_shape([log_prob, sampler_log_prob])
    weight = jnp.minimum(jnp.exp(log_prob - sampler_log_prob), greatest)
    return jax.lax.stop_gradient(weight)


def mean(x: jax.Array, mask: jax.Array, kind: Mean = "token") -> jax.Array:
    """The mean of what tokens come to, over a batch.

    Args:
      x: [..., T].
      mask: [..., T].
      kind: "token": every token counts alike (DAPO, equation 8). "sequence": every answer counts
        alike, as the mean of its tokens (GRPO). "length": sums over answers, divided by T, so that
        no token counts less for the length of its answer (Dr. GRPO).

    Returns:
      [], 0 where no token counts. Answers without one are left out.
    """
    chex.assert_equal_shape([x, mask])
    if kind == "token":
        return masks.mean(x, mask)
    length = _length(mask)[..., 0] if kind == "sequence" else float(x.shape[-1])
    return masks.mean(jnp.sum(mask * x, -1) / length, jnp.max(mask, -1))


def mean_length(mask: jax.Array) -> jax.Array:
    """Returns the mean number [] of tokens of the answers that have any in a mask [..., T]."""
    return masks.mean(jnp.sum(mask, -1), jnp.max(mask, -1))


def _length(mask: jax.Array) -> jax.Array:
    """[..., 1] tokens of each answer, at least 1."""
    return jnp.maximum(jnp.sum(mask, -1, keepdims=True), 1.0)
