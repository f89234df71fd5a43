"""The time of a compiled loop by its parts: environment, acting, replay, learning.

Five programs are timed in turn, each with one part more than the one before, all of the shapes of
the whole: the environment under actions drawn at random; with the policy that chooses them; with
rows that are added to the replay, and items and episodes counted; with batches that are drawn; and
with the learner's gradient steps, which is the whole. A part's time is the difference of two of
them, so that the parts add up to the whole. What the compiler fuses across two parts counts for the
later one. All begin from the state of a loop that has learned for a while.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ....agents.acting import policies
from ....agents.interfaces import Update, UpdateOutput
from ....agents.replay.device import DeviceReplay, ReplayState
from ....environments.functional import streams
from . import cases

PARTS = ("environment", "acting", "adding to the replay", "drawing batches", "learning")
_WARM_UP_SECONDS = 3.0
_TURNS = 512

Nest = Any
Run = Callable[[Any, int], Any]
"""Takes a state, which is donated, and a number of turns; returns the state."""


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Times the programs of a case of `cases.CASES`.

    Args:
      name: of the case.
      rounds: times that each is measured, in turn; the medians count.
      seconds: of each measurement, about.
    """
    case = cases.CASES[name]
    whole = cases.alone(case, "jax:CartPole-v1")
    state = _learned(whole)
    programs = [*_without_replay(whole, state), *_without_learning(case, state)]
    programs.append((whole.advance, state))
    times: list[list[float]] = [[] for _ in programs]
    turns = [_turns_of(run, state, seconds) for run, state in programs]
    for _ in range(rounds):
        for found, (run, begun), count in zip(times, programs, turns, strict=True):
            found.append(_seconds(run, begun, count) / count)
    totals = [statistics.median(found) for found in times]
    parts = [after - less for less, after in zip([0.0, *totals], totals, strict=False)]
    step = dict(zip(PARTS, parts, strict=True))
    return {
        "case": name,
        "num_envs": whole.num_envs,
        "seconds_of_a_turn": totals[-1],
        "env_steps_per_cpu_second": whole.num_envs / totals[-1],
        "seconds": step,
        "shares": {part: value / totals[-1] for part, value in step.items()},
    }


def _learned(whole: cases.LoopAlone) -> Any:
    """Returns the state of a loop that has learned for some seconds."""
    state, until = whole.state, time.perf_counter() + _WARM_UP_SECONDS
    while time.perf_counter() < until or not int(state.learning.steps):
        state = jax.block_until_ready(whole.advance(state, _TURNS))
    return state


def _without_replay(whole: cases.LoopAlone, state: Any) -> list[tuple[Run, Any]]:
    """Returns programs of the environment alone, and with the policy; and their first states."""
    environment, act = whole.environment, policies.batch(whole.policy)
    params = jax.tree.map(jnp.copy, whole.update.variables(state.learning.state)["policy"])
    example = jax.eval_shape(act, params, *_seen(state.acting))[0]
    is_choice = jnp.issubdtype(jax.tree.leaves(example)[0].dtype, jnp.integer)
    if not is_choice:
        raise ValueError("the profile is of agents that choose among actions")

    def step_alone(begun: streams.Streams) -> streams.Streams:
        bits = jax.random.bits(jax.random.fold_in(jax.random.key(2), begun.step), (whole.num_envs,))
        most = whole.environment.actions.num_values
        after, timestep = streams.step(environment, begun, (bits % most).astype(jnp.int32))
        return _kept(after, timestep)

    def step_acting(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        begun, timestep, policy = carry
        action, _, policy = act(params, timestep.observation, policy, timestep.step_type == 0)
        return *streams.step(environment, begun, action), policy

    acting = state.acting
    return [
        (_repeated(step_alone), acting.streams),
        (_repeated(step_acting), (acting.streams, acting.timestep, acting.policy)),
    ]


def _seen(acting: Any) -> tuple[Any, Any, Any]:
    return acting.timestep.observation, acting.policy, acting.timestep.step_type == 0


def _kept(after: streams.Streams, timestep: Any) -> streams.Streams:
    """Returns the state with what the time step says in it, so that none of that is left out."""
    told = jnp.isnan(timestep.reward + timestep.discount) | (timestep.step_type < 0)
    return after._replace(over=after.over | told)


def _repeated(step: Callable[[Any], Any]) -> Run:
    def run(state: Any, turns: jax.Array) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, carry: step(carry), state)

    compiled = jax.jit(run, donate_argnums=0)
    return lambda state, turns: compiled(state, jnp.int32(turns))


class _NeverDue(DeviceReplay):
    """A replay that lets nothing be drawn."""

    def can_sample(self, state: ReplayState) -> jax.Array:
        return jnp.bool_(False)


def _without_learning(case: cases.CompiledCase, state: Any) -> list[tuple[Run, Any]]:
    """Returns programs without batches, and with batches of which nothing is learned."""
    adding = cases.alone(case, "jax:CartPole-v1", replay_class=_NeverDue)
    drawing = cases.alone(case, "jax:CartPole-v1", change_update=_unlearned)
    return [(adding.advance, state), (drawing.advance, state)]


def _unlearned(update: Update) -> Update:
    """Returns an update whose gradient steps only read their batch."""

    def step(state: Nest, sample: Any) -> tuple[Nest, UpdateOutput]:
        shapes = jax.eval_shape(update.step, state, sample)[1]
        read = sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(sample))
        outputs = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype) + read * 0, shapes)
        return state, outputs

    return update._replace(step=step, steps=None)


def _copied(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _seconds(run: Run, begun: Any, turns: int) -> float:
    """Returns the CPU seconds of so many turns, or those of the wall where another device runs."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    state = jax.block_until_ready(_copied(begun))
    start = clock()
    jax.block_until_ready(run(state, turns))
    return clock() - start


def _turns_of(run: Run, begun: Any, seconds: float) -> int:
    """Compiles a program; returns as many turns as take about so many seconds."""
    _seconds(run, begun, 1)
    turns = _TURNS
    while (taken := _seconds(run, begun, turns)) < seconds / 8:
        turns *= 2
    return max(1, round(turns * seconds / taken))


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns the figures as lines: microseconds of a turn, and shares."""
    lines = [f"{'microseconds of a turn':24}" + "".join(f"{one['case']:>18}" for one in found)]
    for part in PARTS:
        cells = (f"{one['seconds'][part] * 1e6:11.1f} {one['shares'][part]:6.1%}" for one in found)
        lines.append(f"{part:24}" + "".join(f"{cell:>18}" for cell in cells))
    wholes = (f"{one['seconds_of_a_turn'] * 1e6:11.1f}       " for one in found)
    lines.append(f"{'whole':24}" + "".join(f"{cell:>18}" for cell in wholes))
    rates = (f"{one['env_steps_per_cpu_second']:,.0f}" for one in found)
    lines.append(f"{'env steps a CPU second':24}" + "".join(f"{cell:>18}" for cell in rates))
    return "\n".join(lines)
