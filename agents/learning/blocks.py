"""Gradient steps towards what a target network says, in lots between two of its moves."""

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
    ask: Callable[[Any, Any], Nest],
    learn: Callable[[Any, Sample, Nest], tuple[Any, UpdateOutput]],
    config: TargetConfig,
    *,
    asks_each_step: bool = False,
) -> tuple[Step, Callable[[int], Step]]:
    """`step` and `steps` of an `Update` whose state has `params`, `target_params` and `steps`.

    Args:
      ask: `(state, data) -> said`: what the target network says of a batch, every array [B, ...].
      learn: `(state, sample, said) -> (state, output)`: a gradient step that leaves the target.
      config: when the target moves, and how far.
      asks_each_step: whether what is said depends on the step, as that of a noisy network does, so
        that a lot is not asked about at once.
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

    def ask_and_learn(state: Any, sample: Sample) -> tuple[Any, UpdateOutput]:
        return learn(state, sample, ask(state, sample.data))

    def step(state: Any, sample: Sample) -> tuple[Any, UpdateOutput]:
        state, output = ask_and_learn(state, sample)
        return move(state, 1), output

    def steps(num_steps: int) -> Step:
        """Steps in lots between which the target network may change, and in which it does not.

        What it says of all batches of a lot is one product, and it is moved once.
        """
        lot = math.gcd(num_steps, period)
        if lot == 1:
            return dispatch.fuse(step, num_steps)
        one_by_one = dispatch.fuse(ask_and_learn, lot)
        after_asking = dispatch.fuse(lambda state, batch: learn(state, *batch), lot)

        def step_lot(state: Any, samples: Sample) -> tuple[Any, UpdateOutput]:
            if asks_each_step:
                state, output = one_by_one(state, samples)
            else:
                said = ask(state, leading_axes.merge(samples.data))
                said = leading_axes.split(said, lot, -1)
                state, output = after_asking(state, (samples, said))
            return move(state, lot), output

        step_lots = dispatch.fuse(step_lot, num_steps // lot)

        def run(state: Any, samples: Sample) -> tuple[Any, UpdateOutput]:
            in_lots = leading_axes.split(samples, -1, lot)
            state, output = step_lots(state, in_lots)
            return state, leading_axes.merge(output)

        return run

    return step, steps
