"""GRPO's update: it makes the better answers to a prompt likelier than the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..generation.groups import AnswerGroups, read_groups
from ..generation.likelihood import log_probs
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import masks, policy
from ..losses import tokens as losses
from ..replay.items import Sample
from .config import GRPOConfig
from .networks import GRPONetworks

Nest = Any
Metrics = dict[str, jax.Array]
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-3}
"""By dtype, how far from 1 the ratio of learner to sampler may be in the mean over tokens."""
LONG = 1_000
"""Gradient steps in which no two answers of a group differed in score, after which it is said."""


class GRPOState(NamedTuple):
    """All that learning changes."""

    params: Nest
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps done, int32."""
    reference: Nest
    """Parameters that divergence is measured from; () where it costs nothing."""
    ratio_error: jax.Array
    """[] float32, see the metric, of the newest batch that has one."""
    equal_steps: jax.Array
    """[] int32, the newest gradient steps in a row in which all groups had equal scores."""


def make_update(networks: GRPONetworks, config: GRPOConfig) -> Update:
    """Group relative policy optimisation (Shao et al., 2024), behind steps of imitation."""
    optimizer = optimizers.scale_by_adam(epsilon=config.adam_epsilon)
    rate = schedules.learning_rate(config)
    imitation_rate = config.supervised_learning_rate
    clips = config.clip_low, config.clip_high
    Loss = Callable[[Nest], tuple[jax.Array, Metrics]]

    def init(key):
        params = networks.decoder.init(key)
        return GRPOState(
            params,
            optimizer.init(params),
            steps=jnp.zeros((), jnp.int32),
            reference=targets.init(params) if config.kl_cost else (),
            ratio_error=jnp.zeros(()),
            equal_steps=jnp.zeros((), jnp.int32),
        )

    def probabilities(params: Nest, groups: AnswerGroups) -> tuple[jax.Array, jax.Array]:
        return log_probs(*networks, params, groups.prompt, groups.tokens, config.temperature)

    def learn(state: GRPOState, loss: Loss, rate: Any) -> tuple[GRPOState, Metrics]:
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            max_norm=config.max_gradient_norm,
            step_size=rate(state.optimizer.count) if callable(rate) else rate,
        )
        metrics = {"loss": descent.loss, "gradient_norm": descent.gradient_norm, **descent.aux}
        return state._replace(params=descent.params, optimizer=descent.optimizer), metrics

    def imitate(state: GRPOState, groups: AnswerGroups) -> tuple[GRPOState, Metrics]:
        """A supervised step on the solution of each prompt, once and not G times."""
        solved = groups._replace(tokens=groups.solution[:, None])

        def loss(params: Nest) -> tuple[jax.Array, Metrics]:
            log_prob, mask = probabilities(params, solved)
            mask *= groups.is_group[:, None, None]
            return -losses.mean(log_prob, mask, config.mean), {
                "answer_length": losses.mean_length(mask)
            }

        state, metrics = learn(state, loss, rate if imitation_rate is None else imitation_rate)
        if config.kl_cost:
            state = state._replace(reference=targets.init(state.params))
        others = jax.eval_shape(reinforce, state, groups)[1]
        zeros = {name: jnp.zeros(x.shape, x.dtype) for name, x in others.items()}
        return state, {**zeros, **metrics, "supervised": jnp.ones(())}

    def reinforce(state: GRPOState, groups: AnswerGroups) -> tuple[GRPOState, Metrics]:
        """A step on how answers compare with the others of their groups."""
        staleness = state.steps - groups.steps
        sampled = groups.is_group * (groups.steps >= config.supervised_steps)
        differ, is_stale = losses.scores_differ(groups.score), jnp.zeros_like(sampled)
        if config.max_staleness is not None:
            is_stale = (staleness > config.max_staleness).astype(jnp.float32)
        counts = sampled * (1.0 - is_stale) * (differ if config.drop_equal_groups else 1.0)
        is_fresh = sampled * (staleness == 0)
        before = after = None
        if config.max_importance is not None and config.num_passes > 1:
            before = probabilities(state.params, groups)[0]
        if config.kl_cost:
            after = probabilities(state.reference, groups)[0]
        loss = make_loss(groups, counts, is_fresh, before, after)
        state, metrics = learn(state, loss, rate)
        error = jnp.where(jnp.any(is_fresh > 0), metrics["ratio_error"], state.ratio_error)
        if config.num_passes > 1:
            state, passes = jax.lax.scan(
                lambda state, _: learn(state, loss, rate), state, length=config.num_passes - 1
            )
            metrics = {name: x[-1] for name, x in passes.items()}
        equal = jnp.where(jnp.any(sampled * differ > 0), 0, state.equal_steps + 1)
        return state._replace(ratio_error=error, equal_steps=equal), {
            **metrics,
            "ratio_error": error,
            "score": masks.mean(jnp.mean(groups.score, -1), sampled),
            "equal_groups": masks.mean(1.0 - differ, sampled),
            "equal_steps": equal.astype(jnp.float32),
            "stale_groups": jnp.sum(sampled * is_stale),
            "staleness": masks.mean(staleness.astype(jnp.float32), sampled),
            "supervised": jnp.zeros(()),
        }

    def make_loss(
        groups: AnswerGroups,
        counts: jax.Array,
        is_fresh: jax.Array,
        old: jax.Array | None,
        reference: jax.Array | None,
    ) -> Loss:
        """The loss of a batch. `old`, `reference`: float32 [B, G, T] of answers; the rest [B] is 1
        for groups that count, and for those of the newest parameters."""
        advantage = losses.group_advantages(
            groups.score,
            leave_one_out=config.baseline == "leave_one_out",
            normalize=config.normalize_advantages,
        )

        def loss(params: Nest) -> tuple[jax.Array, Metrics]:
            log_prob, mask = probabilities(params, groups)
            sampler, kept = groups.log_probs, mask * counts[:, None, None]
            to_sampler = mask * (log_prob - sampler)
            importance: jax.Array | float = 1.0
            log_ratio = to_sampler
            if config.max_importance is not None:
                start = jax.lax.stop_gradient(log_prob) if old is None else old
                importance = losses.truncated_importance(start, sampler, config.max_importance)
                log_ratio = mask * (log_prob - start)
            if config.ratio == "sequence":
                log_ratio = losses.sequence_log_ratio(log_ratio, mask)
            gain = jnp.broadcast_to(advantage[..., None], log_prob.shape)
            each = importance * losses.of_each_token(config.loss, log_prob, log_ratio, gain, *clips)
            metrics = {
                "kl": losses.mean(policy.kl_estimate(log_prob, sampler), kept),
                "entropy": losses.mean(-log_prob, mask),
                "clipped": losses.mean(losses.is_clipped(log_ratio, *clips), kept),
                "answer_length": losses.mean_length(mask),
                "ratio_error": losses.mean(
                    jnp.abs(jnp.expm1(to_sampler)), mask * is_fresh[:, None, None]
                ),
            }
            if reference is not None:
                divergence = losses.kl_to_reference(log_prob, reference)
                metrics["reference_kl"] = losses.mean(divergence, kept)
                each += config.kl_cost * divergence
            return losses.mean(each, kept, config.mean), metrics

        return loss

    def step(state: GRPOState, sample: Sample):
        groups = read_groups(sample.data)
        if config.supervised_steps:
            supervised = state.steps < config.supervised_steps
            learned, metrics = jax.lax.cond(supervised, imitate, reinforce, state, groups)
        else:
            learned, metrics = reinforce(state, groups)
        return learned._replace(steps=state.steps + 1), UpdateOutput(metrics)

    return Update(
        init,
        step,
        lambda state: {"policy": {"decoder": state.params, "steps": state.steps}},
        remarks=lambda metrics: remarks(metrics, TOLERANCES[config.dtype]),
    )


def remarks(metrics: Mapping[str, float], tolerance: float) -> dict[str, str]:
    """Returns sentences that users should know of a step's metrics, by name."""
    found, error = {}, metrics.get("ratio_error", 0.0)
    if error > tolerance:
        found["ratio"] = (
            "learner and sampler of the same parameters give tokens other probabilities: their "
            f"ratio is off 1 by {error:.1e} in the mean over tokens, and should be by at most "
            f"{tolerance:.0e}; --config.max_importance 2 corrects for it"
        )
    if metrics.get("equal_steps", 0.0) >= LONG:
        found["equal"] = (
            f"in {LONG:,} gradient steps no two answers to a prompt had different scores, and "
            "nothing is learned of equal ones; raise --config.supervised_steps, --env.answers or "
            "--config.temperature, or take prompts that are neither too hard nor too easy"
        )
    if metrics.get("supervised", 0.0) and not metrics.get("answer_length", 0.0):
        found["solutions"] = (
            "the prompts have no solutions to imitate, and nothing is learned of them; give the "
            "task a solution(prompt), or --config.supervised_steps 0"
        )
    return found
