"""How fast an agent trains, beside a bare loop of its environment and beside other libraries.

    python -m troupe.baselines.speed dqn --env CartPole-v1 --json
    python -m troupe.baselines.speed ppo --env CartPole-v1 --against sb3=PYTHON,sbx=PYTHON
    python -m troupe.baselines.speed normalized+sac --env HalfCheetah-v5 --repeats 2 \\
        --evaluate-every 25000 --against sb3=PYTHON     (what the tuned settings return beside it)
    python -m troupe.baselines.speed dqn --launch processes     (see `distributed`)

Every library runs the same settings, in turn, as often as `--repeats` says; ratios are between the
medians, so that all are measured under what else the machine had to do. Only where the workload is
"tuned" this one runs the baseline's own settings, wrappers of the agent among them, and the others
the zoo's for as many steps: then returns are compared, and rates are not. What a rate is, and that
compilation and evaluations are left out of it, is said in `peers`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
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
from . import arithmetic, peers

_WARMUP_CALLS = 2
_EVALUATE_EVERY = 5_000


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is run: the config here, and what the other libraries have beside it.

    That is the same settings in their names, or the zoo's beside the baseline's own.
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
            # The zoo's 1,000 count steps of the environment, of which there are four to a gradient.
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
    """Trains with this library; what it returns has the fields of `peers.run`.

    Besides, `gradient_steps_per_second_in_training` counts only the time inside of the learner, and
    `bare_gradient_steps_per_second` a loop of the same matrix products (see `arithmetic`), of which
    the former is `share_of_bare_products`; both are left out where there are convolutions.
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
            **peers.bare_rate(gymnasium.make(env).unwrapped),
        }
    finally:
        parts.replay.close()
        environment.close()


def _experiment(agent: str, env: str, work: Workload, seed: int, episodes: int) -> Experiment:
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(**work.config))

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


def compare(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    to_target: bool = False,
    same_settings: bool = True,
) -> dict[str, Any]:
    """Medians of every library, and how this one does beside each of the others.

    A ratio above 1 says that this library is ahead: more steps a second, fewer seconds to the
    target. Rates have no ratio where the settings differ. `seconds_to_target`, where there is one,
    is on the clock of the training with the warm-up left out, and None where the median run did not
    get there. Without a target, which ends evaluations, `leads` are by how much this library's last
    return is above the other's.
    """
    medians: dict[str, Any] = {}
    for library, results in runs.items():
        medians[library] = {
            name: statistics.median(values)
            for name in (
                "env_steps_per_second",
                "env_steps_per_cpu_second",
                "gradient_steps_per_second",
                "gradient_steps_per_second_in_training",
                "bare_gradient_steps_per_second",
                "share_of_bare_products",
                "warmup_seconds",
                "setup_seconds",
                "bare_env_steps_per_second",
            )
            if (values := [r[name] for r in results if r.get(name) is not None])
        }
        returns = [r["evaluations"][-1][1] for r in results if r["evaluations"]]
        if returns:
            medians[library]["last_return"] = statistics.median(returns)
        for clock in ("wall", "cpu") if to_target else ():
            medians[library][f"{clock}_seconds_to_target"] = _to_target(results, clock)
    ours = medians["troupe"]
    rates = ("env_steps_per_second", "env_steps_per_cpu_second") if same_settings else ()
    ratios: dict[str, dict[str, float]] = {}
    leads: dict[str, float] = {}
    for library, theirs in medians.items():
        if library == "troupe":
            continue
        ratios[library] = {name: ours[name] / theirs[name] for name in rates}
        for name in ("wall_seconds_to_target", "cpu_seconds_to_target"):
            if ours.get(name) and theirs.get(name):
                ratios[library][name] = theirs[name] / ours[name]
        if not to_target and "last_return" in ours and "last_return" in theirs:
            leads[library] = ours["last_return"] - theirs["last_return"]
    return {"medians": medians, "ratios": ratios, "leads": leads}


def _to_target(results: Sequence[Mapping[str, Any]], clock: str) -> float | None:
    """The median time to the target less the warm-up; a run that never got there counts as last."""
    warmup = "warmup_seconds" if clock == "wall" else "warmup_cpu_seconds"
    times = [
        r["target"][f"{clock}_seconds"] - r[warmup] if r["target"] else math.inf for r in results
    ]
    median = statistics.median_low(times)
    return median if math.isfinite(median) else None


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
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("troupe", *against)}
        for seed in range(args.seed, args.seed + args.repeats):
            runs["troupe"].append(
                measure(args.agent, args.env, work, seed=seed, target=target, evaluate_every=every)
            )
            _tell("troupe", seed, runs["troupe"][-1])
            for library, python in against.items():
                asked = peers.zoo(
                    library,
                    _unwrapped(args.agent),
                    args.env,
                    seed=seed,
                    target_return=target,
                    evaluate_every=every,
                    total_steps=work.steps,
                )
                runs[library].append(peers.measure(python, asked))
                _tell(library, seed, runs[library][-1])
    except ValueError as error:
        print(f"troupe: {error}", file=sys.stderr)
        return 2
    outcome = compare(runs, to_target=args.target is not None, same_settings=work.same_settings)
    if args.json:
        print(json.dumps({**outcome, "runs": runs}, indent=2))
    else:
        _print(outcome)
    return 0


def _tell(library: str, seed: int, result: Mapping[str, Any]) -> None:
    """One line for a run that is over: the next may take an hour."""
    returns = [f"{value:,.1f} after {steps:,}" for steps, value in result["evaluations"]]
    print(
        f"{library} with seed {seed}: {result['env_steps']:,} env steps in "
        f"{result['wall_seconds']:,.0f} s" + "; ".join(["", *returns]),
        file=sys.stderr,
        flush=True,
    )


def _print(outcome: Mapping[str, Any]) -> None:
    for library, medians in outcome["medians"].items():
        print(library)
        for name, value in medians.items():
            digits = 1 if value is None or value >= 10 else 3
            print(f"  {name:40s} {'never' if value is None else f'{value:,.{digits}f}'}")
    for library, ratios in outcome["ratios"].items():
        for name, value in ratios.items():
            print(f"{value:6.2f} x {library}  {name}")
    for library, value in outcome["leads"].items():
        print(f"{value:+8,.1f}  {library}  last_return")


if __name__ == "__main__":
    sys.exit(main())
