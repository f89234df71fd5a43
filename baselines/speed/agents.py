"""Measures how fast an agent trains, beside a bare loop of its environment and other libraries.

    python -m troupe.baselines.speed dqn --env CartPole-v1 --json
    python -m troupe.baselines.speed ppo --env CartPole-v1 --against sb3=PYTHON,sbx=PYTHON
    python -m troupe.baselines.speed normalized+sac --env HalfCheetah-v5 --repeats 2 \\
        --evaluate-every 25000 --against sb3=PYTHON     (returns of the tuned settings)
    python -m troupe.baselines.speed dqn --launch processes     (see `distributed`)

Every library runs the same settings, in turn, as often as `--repeats` says. stable-baselines3 runs
once with one thread and once with one for each core; SBX takes as many gradient steps in a call as
this library does. Ratios are between medians, in wall time and for each second of a processor.

The workload "tuned" is another case: this library runs the baseline's own settings, wrappers of
the agent among them, and the others the zoo's for as many steps. Returns are compared then, and
rates are not. `peers` defines a rate, without compilation and evaluations.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from ... import environments
from ...agents import find_builder
from ...agents.programs import dispatch, runtime
from ...launch import Evaluation, Experiment
from ...launch.evaluation.evaluator import Evaluator
from ...launch.local.components import make as make_parts
from ...launch.local.components import make_environment
from ...launch.local.loop import CatchUp, Loop
from ...launch.signals import Stop
from ..settings import find
from ..settings.dqn import CARTPOLE_ZOO as DQN_CARTPOLE_ZOO
from ..settings.ppo import PPO_CARTPOLE_ZOO
from ..settings.sac import SAC_MUJOCO_ZOO
from ..settings.td3 import TD3_MUJOCO_ZOO
from . import arithmetic, comparison, peers

_WARMUP_CALLS = 2
_EVALUATE_EVERY = 5_000


@dataclasses.dataclass(frozen=True)
class Workload:
    """The config of a run here, and of the other libraries beside it.

    Those have the same settings in their names, or the zoo's beside the baseline's own.
    """

    config: Mapping[str, Any]
    steps: int
    has_peers: bool = True
    same_settings: bool = True


_DQN_ZOO = {**DQN_CARTPOLE_ZOO, "double": False}
WORKLOADS: dict[tuple[str, str, str], Workload] = {
    ("dqn", "CartPole-v1", "zoo"): Workload(_DQN_ZOO, steps=50_000),
    ("dqn", "CartPole-v1", "prioritised"): Workload(
        {
            "hidden_sizes": (64, 64),
            "batch_size": 64,
            "samples_per_insert": 64.0,
            "priority_exponent": 0.6,
            "steps_per_dispatch": 8,
        },
        steps=20_000,
        has_peers=False,
    ),
    ("dqn", "ALE/Pong-v5", "zoo"): Workload(
        {
            "double": False,
            "learning_rate": 1e-4,
            "batch_size": 32,
            "max_replay_size": 10_000,
            "min_replay_size": 1_000,
            # The zoo's 1,000 count steps of the environment: four to a gradient step.
            "target_update_period": 250,
            "samples_per_insert": 8.0,
            "steps_per_dispatch": 4,
            "epsilon_end": 0.01,
            "epsilon_decay_steps": 500,
        },
        steps=5_000,
    ),
    ("ppo", "CartPole-v1", "zoo"): Workload(PPO_CARTPOLE_ZOO, steps=100_000),
    ("qrdqn", "CartPole-v1", "zoo"): Workload({**_DQN_ZOO, "num_atoms": 10}, steps=50_000),
    ("sac", "HalfCheetah-v5", "zoo"): Workload(SAC_MUJOCO_ZOO, steps=20_000),
    ("td3", "HalfCheetah-v5", "zoo"): Workload(TD3_MUJOCO_ZOO, steps=20_000),
}
"""By agent, environment and name. For any other pair "tuned" runs the baseline's own settings."""


def workload(agent: str, env: str, name: str) -> Workload:
    """A workload by its names.

    Raises:
      ValueError: where there is none, listing those there are.
    """
    if (agent, env, name) in WORKLOADS:
        return WORKLOADS[agent, env, name]
    settings = find(agent, env)
    if name == "tuned" and settings is not None:
        has_peers = (_unwrapped(agent), env) in peers.ZOO
        return Workload(settings.config, settings.steps, has_peers, same_settings=False)
    names = [key[2] for key in WORKLOADS if key[:2] == (agent, env)]
    names += ["tuned"] if settings is not None else []
    raise ValueError(
        f"there is no workload {name!r} of {agent} on {env}; "
        f"there are {', '.join(names) or 'none: the baselines have no such pair'}."
    )


def _unwrapped(agent: str) -> str:
    """An agent's name without those of the wrappers before it."""
    return agent.rpartition("+")[2]


def measure(
    agent: str,
    env: str,
    work: Workload,
    *,
    seed: int = 0,
    target: float | None = None,
    evaluate_every: int = _EVALUATE_EVERY,
    episodes: int = 20,
) -> dict[str, Any]:
    """Trains with this library and returns the fields of `peers.run`.

    Besides, `devices` has the platforms of the actor and of the learner,
    `gradient_steps_per_second_in_training` counts only the time inside of the learner, and
    `bare_gradient_steps_per_second` is the rate of a loop of the same matrix products (see
    `arithmetic`); `share_of_bare_products` is the ratio of the two. The last two are left out where
    there are convolutions.
    """
    began = peers.Clock()
    experiment = _experiment(agent, env, work, seed, episodes)
    environment = make_environment(experiment, 0)
    parts = make_parts(experiment, environment)
    try:
        setup_seconds = began.read()[0]
        trained = _train(experiment, parts, target, evaluate_every, episodes)
        return {
            "library": "troupe",
            **trained,
            **_bare_products(experiment, environments.make_spec(environment), parts, trained),
            "setup_seconds": setup_seconds,
            "devices": parts.devices.to_json(),
            **peers.bare_rate(gymnasium.make(env).unwrapped),
        }
    finally:
        parts.replay.close()
        environment.close()


def _builder(agent: str, work: Workload) -> Any:
    builder_class = find_builder(agent)
    return builder_class(builder_class.config_class(**work.config))


def _experiment(agent: str, env: str, work: Workload, seed: int, episodes: int) -> Experiment:
    builder = _builder(agent, work)

    def make(*, seed: int, num_envs: int, evaluation: bool) -> environments.Vector:
        return environments.make(env, seed=seed, num_envs=num_envs, actions=builder.actions)

    evaluation = Evaluation(episodes=episodes, num_envs=episodes)
    return Experiment(builder, make, env, work.steps, seed, evaluation=evaluation)


def _train(
    experiment: Experiment, parts: Any, target: float | None, evaluate_every: int, episodes: int
) -> dict[str, Any]:
    learner, stop = _Timed(parts.learner), Stop()
    evaluator: Evaluator = parts.evaluator
    between = CatchUp(learner.step, parts.replay, experiment.builder.steps_per_dispatch)
    loop = Loop(parts.environment, parts.actor, between)
    evaluations: list[tuple[int, float]] = []
    reached: dict[str, Any] | None = None
    clock = peers.Clock()
    # The warm-up goes step by step, so that it ends with the second call.
    while learner.calls < _WARMUP_CALLS:
        loop.advance(loop.actor_steps + 1, math.inf, stop)
    if loop.actor_steps >= experiment.budget:
        raise ValueError(
            f"learning begins with env step {loop.actor_steps:,}: of {experiment.budget:,} none is "
            "left to be measured; give more --steps."
        )
    warmup = (loop.actor_steps, parts.learner.steps, *clock.read())
    learner.seconds, steps_before = 0.0, parts.learner.steps
    while loop.actor_steps < experiment.budget:
        due = (loop.actor_steps // evaluate_every + 1) * evaluate_every
        loop.advance(min(due, experiment.budget), math.inf, stop)
        if target is None or reached is not None:
            continue
        with clock.paused():
            outcome = evaluator.run(len(evaluations), episodes, loop.actor_steps, stop)
        assert outcome is not None
        mean = float(np.mean(outcome.returns))
        evaluations.append((loop.actor_steps, mean))
        if mean >= target:
            wall, cpu = clock.read()
            reached = {"env_steps": loop.actor_steps, "return": mean}
            reached |= {"wall_seconds": wall, "cpu_seconds": cpu}
    if not learner.seconds:
        raise ValueError(
            f"the warm-up ended with env step {warmup[0]:,}, and nothing was learned from there to "
            f"{experiment.budget:,}; give more --steps."
        )
    wall, cpu = clock.read()
    steps, gradients, seconds, cpu_seconds = warmup
    after, learned = loop.actor_steps - steps, parts.learner.steps - gradients
    return {
        "env_steps_per_second": after / (wall - seconds),
        "env_steps_per_cpu_second": after / (cpu - cpu_seconds),
        "gradient_steps_per_second": learned / (wall - seconds),
        "gradient_steps_per_cpu_second": learned / (cpu - cpu_seconds),
        "gradient_steps_per_second_in_training": (parts.learner.steps - steps_before)
        / learner.seconds,
        "env_steps": loop.actor_steps,
        "gradient_steps": parts.learner.steps,
        "gradient_steps_per_call": parts.learner.steps / learner.calls,
        "warmup_seconds": seconds,
        "warmup_cpu_seconds": cpu_seconds,
        "warmup_env_steps": steps,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "target": reached,
        "evaluations": evaluations,
    }


def _bare_products(
    experiment: Experiment,
    spec: environments.EnvironmentSpec,
    parts: Any,
    trained: Mapping[str, Any],
) -> dict[str, float]:
    """The rate of a loop of the update's matrix products, and how near to it training came."""
    update = experiment.builder.make_update(experiment.make_networks(spec), spec)
    state = jax.eval_shape(update.init, jax.random.key(0))
    batch = dispatch.on_device(parts.replay.sample_shapes())
    counts = arithmetic.products(update.step, state, batch)
    if not counts:
        return {}
    rate = 1.0 / arithmetic.seconds(counts)
    share = trained["gradient_steps_per_second_in_training"] / rate
    return {"bare_gradient_steps_per_second": rate, "share_of_bare_products": share}


class _Timed:
    """A learner that counts its calls and the seconds they take."""

    def __init__(self, learner: Any):
        self._learner = learner
        self.calls, self.seconds = 0, 0.0

    def step(self) -> None:
        start = time.perf_counter()
        self._learner.step()
        self.seconds += time.perf_counter() - start
        self.calls += 1


def _parse_peers(text: str) -> dict[str, str]:
    """ "sb3=PYTHON,sbx=PYTHON" as a dict."""
    pairs = dict(part.partition("=")[::2] for part in text.split(",") if part)
    for library, python in pairs.items():
        if library not in ("sb3", "sbx") or not python:
            raise ValueError(f"--against takes sb3=PYTHON and sbx=PYTHON, not {text!r}.")
    return pairs


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="troupe.baselines.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("agent")
    parser.add_argument("--env", required=True)
    parser.add_argument("--workload", help="zoo, prioritised or tuned; by default zoo or tuned")
    parser.add_argument("--steps", type=int, help="env steps of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; then one more each")
    parser.add_argument("--repeats", type=int, default=1, help="runs of every library")
    parser.add_argument("--target", type=float, help="time the way to this greedy return")
    parser.add_argument(
        "--evaluate-every",
        type=int,
        metavar="N",
        help="env steps between evaluations, without a target too; default: 5000 with one",
    )
    parser.add_argument("--against", default="", help="sb3=PYTHON,sbx=PYTHON")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    if any(word.startswith("--launch") for word in (sys.argv[1:] if argv is None else argv)):
        from . import distributed

        return distributed.main(argv)
    args = _arguments().parse_args(argv)
    try:
        against = _parse_peers(args.against)
        default = "zoo" if (args.agent, args.env, "zoo") in WORKLOADS else "tuned"
        work = workload(args.agent, args.env, args.workload or default)
        if args.steps is not None:
            work = dataclasses.replace(work, steps=args.steps)
        if against and not work.has_peers:
            raise ValueError("the other libraries have no such workload; leave out --against.")
        every = _EVALUATE_EVERY if args.evaluate_every is None else args.evaluate_every
        if every < 1:
            raise ValueError(f"--evaluate-every must be at least 1, got {every}.")
        # Evaluations without a target go on to the end, as those with one out of reach.
        target = math.inf if args.target is None and args.evaluate_every else args.target
        # Jax must not have touched a device.
        runtime.configure_cpu()
        rivals = _rivals(args.agent, args.env, work, against)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("troupe", *rivals)}
        for seed in range(args.seed, args.seed + args.repeats):
            runs["troupe"].append(
                measure(args.agent, args.env, work, seed=seed, target=target, evaluate_every=every)
            )
            _tell("troupe", seed, runs["troupe"][-1])
            for name, (python, settings) in rivals.items():
                asked = dataclasses.replace(
                    settings, seed=seed, target_return=target, evaluate_every=every
                )
                runs[name].append(peers.measure(python, asked))
                _tell(name, seed, runs[name][-1])
    except ValueError as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 2
    to_target = args.target is not None
    outcome = comparison.compare(runs, to_target=to_target, same_settings=work.same_settings)
    if args.json:
        print(json.dumps({**outcome, "runs": runs}, indent=2))
    else:
        print(f"{args.agent} on {args.env}, {work.steps:,} env steps, runs of each: {args.repeats}")
        print(comparison.table(outcome, same_settings=work.same_settings))
    return 0


def _rivals(
    agent: str, env: str, work: Workload, against: Mapping[str, str]
) -> dict[str, tuple[str, peers.PeerRun]]:
    """The runs of other libraries: by the name of a row its interpreter and its settings.

    Args:
      agent: name, with wrappers.
      env: an id of Gymnasium.
      work: what this library runs.
      against: interpreters by library.
    """
    found = {}
    cores = len(os.sched_getaffinity(0))
    for library, python in against.items():
        settings = peers.zoo(library, _unwrapped(agent), env, total_steps=work.steps)
        if library == "sbx":
            fused = _builder(agent, work).steps_per_dispatch
            found["sbx"] = python, peers.with_fused_steps(settings, fused)
            continue
        for threads in sorted({1, cores}):
            name = f"{library}, {threads} thread{'s' * (threads > 1)}"
            found[name] = python, dataclasses.replace(settings, torch_threads=threads)
    return found


def _tell(library: str, seed: int, result: Mapping[str, Any]) -> None:
    """One line for a run that is over: the next may take an hour."""
    returns = [f"{value:,.1f} after {steps:,}" for steps, value in result["evaluations"]]
    print(
        f"{library} with seed {seed}: {result['env_steps']:,} env steps in "
        f"{result['wall_seconds']:,.0f} s" + "; ".join(["", *returns]),
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
