"""Gradient steps towards a target network, in blocks between two of its moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import leading_axes
from ..configs import TargetConfig
from ..interfaces import UpdateOutput
from ..programs import dispatch
from ..replay.items import Sample
from . import targets

Nest = Any
Step = Callable[[Any, Sample], tuple[Any, UpdateOutput]]


def towards_target(
    target_outputs: Callable[[Any, Any], Nest],
    learn: Callable[[Any, Sample, Nest], tuple[Any, UpdateOutput]],
    config: TargetConfig,
    *,
    varies_by_step: bool = False,
) -> tuple[Step, Callable[[int], Step]]:
    """Returns `step` and `steps` of an `Update`.

    Its state has `params`, `target_params` and `steps`.

    Args:
      target_outputs: `(state, data) -> outputs` of the target network for a batch, each [B, ...].
      learn: `(state, sample, outputs) -> (state, output)`: a gradient step that leaves the target.
      config: when the target moves, and how far.
      varies_by_step: True if the outputs depend on the step, as those of a noisy network do; they
        are then computed step by step.
    """
    period = config.target_update_period

    def move(state: Any, num_steps: int) -> Any:
        """Moves the target if one of the last `num_steps` steps was its turn."""
        target_params = targets.periodic(
            state.target_params,
            state.params,
            state.steps,
            period,
            rate=config.target_update_rate,
            num_steps=num_steps,
        )
        return state._replace(target_params=target_params)

    def learn_one(state: Any, sample: Sample) -> tuple[Any, UpdateOutput]:
        return learn(state, sample, target_outputs(state, sample.data))

    def step(state: Any, sample: Sample) -> tuple[Any, UpdateOutput]:
        state, output = learn_one(state, sample)
        return move(state, 1), output

    def steps(num_steps: int) -> Step:
        """Fuses steps in blocks between which the target network may move, and in which it stays.

        Its outputs for all batches of a block are one product, and it is moved once.
        """
        size = math.gcd(num_steps, period)
        if size == 1:
            return dispatch.fuse(step, num_steps)
        one_by_one = dispatch.fuse(learn_one, size)
        from_outputs = dispatch.fuse(lambda state, batch: learn(state, *batch), size)

        def step_block(state: Any, samples: Sample) -> tuple[Any, UpdateOutput]:
            if varies_by_step:
                state, output = one_by_one(state, samples)
            else:
                outputs = target_outputs(state, leading_axes.merge(samples.data))
                outputs = leading_axes.split(outputs, size, -1)
                state, output = from_outputs(state, (samples, outputs))
            return move(state, size), output

        return dispatch.in_blocks(step_block, num_steps, size)

    return step, steps
