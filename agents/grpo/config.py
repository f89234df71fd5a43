"""Settings of GRPO."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from ..bounds import MOST_STEPS, Above, AllBounds
from ..configs import AdamConfig
from ..generation.model import DecoderFields
from ..losses.tokens import Loss, Mean


@dataclasses.dataclass(frozen=True)
class GRPOConfig(AdamConfig, DecoderFields):
    """Settings of GRPO. A group is the answers to one prompt (--env.answers of them).

    The defaults are those of DAPO and Dr. GRPO (https://arxiv.org/abs/2503.14476 and
    https://arxiv.org/abs/2503.20783) but for the length of answers, which are not long here.
    """

    num_envs: int = 16
    """Prompts that an actor answers together."""
    batch_size: int = 16
    """Groups per gradient step, which wait in a queue and are learned from in the order of
    answering."""
    num_passes: int = 1
    """Gradient steps on each batch."""
    learning_rate: float = 3e-4
    max_gradient_norm: float | None = 1.0
    discount: float = 1.0
    """Always 1: an answer is one action."""

    supervised_steps: int = 0
    """Gradient steps at the start that make the task's own solutions likely, before there is
    anything to reinforce."""
    supervised_learning_rate: float | None = None
    """Step size in those steps; None: learning_rate."""

    temperature: float = 1.0
    """Logits are divided by it, in sampling and in learning; evaluations take the likeliest
    token."""
    top_k: int | None = None
    """Answers are drawn among so many of the likeliest tokens; None: among all."""
    top_p: float | None = None
    """Answers are drawn among the fewest tokens whose probabilities add up to this; None: all."""

    baseline: Literal["mean", "leave_one_out"] = "mean"
    """Baseline of an answer's score: the mean of its group, or of the others in it."""
    normalize_advantages: bool = False
    """Advantages are divided by the deviation of their group's scores."""
    drop_equal_groups: bool = True
    """Groups whose scores are all equal are left out of means, and not counted as 0."""
    loss: Loss = "clip"
    """The objective: the clipped surrogate, a clipped weight that keeps the gradient of every
    token, or the plain log-probability."""
    ratio: Literal["token", "sequence"] = "token"
    """Ratio to the policy that answered: of each token, or of the whole answer by its
    length (GSPO; its clips are 3e-4 and 4e-4)."""
    clip_low: float = 0.2
    """The ratio counts down to 1 less this; 1 is no bound."""
    clip_high: float = 0.28
    """The ratio counts up to 1 plus this."""
    mean: Mean = "token"
    """Means of losses: every token alike, every answer alike, or every answer by its sum over the
    greatest length."""
    kl_cost: float = 0.0
    """Weight of the divergence from a reference: the policy that reinforcement began with, which
    is kept besides. 0 keeps none."""
    max_importance: float | None = None
    """Greatest weight of a token by its probability under the learner over the sampler's; ratios
    are then to the learner as it was before the batch. None: ratios are to the sampler."""
    max_staleness: int | None = 8
    """Gradient steps after which answers of an older policy weigh nothing. Actors wait before they
    answer what would be learned from later. None: neither."""

    bounds: ClassVar[AllBounds] = {
        "batch_size": (1, 1_000_000),
        "num_passes": (1, 1_000),
        "discount": (1.0, 1.0),
        "supervised_steps": (0, MOST_STEPS),
        "supervised_learning_rate": (0.0, 100.0),
        "temperature": Above(0.0, 100.0),
        "top_k": (1, 10_000_000),
        "top_p": Above(0.0, 1.0),
        "clip_low": (0.0, 1.0),
        "clip_high": (0.0, 1e6),
        "kl_cost": (0.0, 1e3),
        "max_importance": Above(0.0, 1e6),
        "max_staleness": (0, MOST_STEPS),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_staleness is None:
            return
        # The last batch of what is answered together, and of a dispatch, is learned from so late.
        waits = max(-(-self.num_envs // self.batch_size), self.steps_per_dispatch) - 1
        if waits > self.max_staleness:
            raise ValueError(
                f"max_staleness is {self.max_staleness}, and some of the groups that num_envs = "
                f"{self.num_envs} prompts make, in batches of batch_size = {self.batch_size} and "
                f"{self.steps_per_dispatch} of them in a dispatch, are {waits} gradient steps old "
                "when they are learned from; raise max_staleness or batch_size."
            )
