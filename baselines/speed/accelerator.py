"""Compares a machine's accelerator with its host, and a partitioned step there with `jax.jit`.

    python -m troupe.baselines.speed.accelerator --json

Each agent trains twice, in processes of its own: on the devices that a run takes by default, and
with JAX_PLATFORMS=cpu. Rates leave out compilation, as in `agents`. Then updates of agents, and one
that takes some milliseconds, run on a mesh of one device beside `jax.jit`. Without an accelerator
both rates are the host's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax

from .partitioner import CALLS, calling, shown

#: Agent, environment and env steps of a run.
AGENTS = (
    ("dqn", "CartPole-v1", 10_000),
    ("ppo", "CartPole-v1", 60_000),
    ("sac", "Pendulum-v1", 5_000),
    ("dqn", "ALE/Pong-v5", 4_000),
)
#: A step of some milliseconds on an accelerator, as that of `CALLS` is on a CPU.
LARGE_MLP = {"batch": 512, "num_layers": 8, "width": 1024, "hidden": 4096, "optimizer": "adam"}
_SECONDS = 200.0


def train(agent: str, env: str, steps: int, *, cpu: bool) -> dict[str, Any]:
    """Trains in a process of its own, and returns the fields of `agents.measure`.

    Args:
      agent: name of the agent.
      env: id of the environment.
      steps: env steps.
      cpu: True hides the accelerator; else the run takes the devices that it finds quickest.

    Raises:
      ValueError: if the run fails or takes too long, with its last line.
    """
    variables = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    variables |= {"JAX_PLATFORMS": "cpu"} if cpu else {}
    command = [sys.executable, "-m", __package__, agent, "--env", env, "--steps", str(steps)]
    try:
        done = subprocess.run(
            [*command, "--json"],
            capture_output=True,
            text=True,
            env=variables,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{agent} on {env} took more than {_SECONDS:g} s.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"{agent} on {env} failed: {last}")
    return json.loads(done.stdout)["runs"]["troupe"][0]


def compare(agent: str, env: str, steps: int, rounds: int) -> dict[str, Any]:
    """Returns the rates of an agent by default and on the host, medians over rounds in turn.

    `ratio` above 1 says that the default is ahead.

    Raises:
      ValueError: of `train`.
    """
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for turn in range(rounds):
        for cpu in (False, True) if turn % 2 == 0 else (True, False):
            runs[cpu].append(train(agent, env, steps, cpu=cpu))
    default, host = (
        statistics.median(run["env_steps_per_second"] for run in runs[cpu]) for cpu in (False, True)
    )
    return {
        "agent": agent,
        "env": env,
        "default": round(default, 1),
        "cpu": round(host, 1),
        "ratio": round(default / host, 3),
        **{f"{who}_on": where for who, where in runs[False][-1]["devices"].items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints all ratios; status 1 if a run failed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each agent (default 1)")
    parser.add_argument("--steps", type=int, help="env steps of every run, to try the script")
    parser.add_argument("--turns", type=int, default=15, help="rounds of updates (default 15)")
    parser.add_argument(
        "--only", nargs="*", metavar="AGENT:ENV", help="of the agents; nothing: updates alone"
    )
    options = parser.parse_args(argv)
    rows, failures = [], []
    # Processes first: this one takes most of an accelerator's memory as soon as it uses it.
    for agent, env, steps in AGENTS:
        if options.only is not None and f"{agent}:{env}" not in options.only:
            continue
        try:
            rows.append(shown(compare(agent, env, options.steps or steps, options.rounds)))
        except ValueError as error:
            failures.append(str(error))
            print(f"troupe: {error}", file=sys.stderr, flush=True)
    device = jax.devices()[0]
    large = {} if device.platform == "cpu" else {"mlp": LARGE_MLP}
    updates = [
        shown(calling(name, options.turns, most, **large.get(name, sizes)))
        for name, sizes, most in CALLS
    ]
    machine = {
        "device": device.device_kind,
        "platform": device.platform,
        "cores": os.cpu_count(),
    }
    found = {
        "machine": machine,
        "versions": {"python": sys.version.split()[0], "jax": jax.__version__},
        "agents": rows,
        "updates": updates,
        "failures": failures,
    }
    print(json.dumps(found, indent=2) if options.json else table(found))
    return 1 if failures else 0


def table(found: dict[str, Any]) -> str:
    """The figures as lines for people."""
    machine, versions = found["machine"], found["versions"]
    lines = [
        f"{machine['device']}, {machine['cores']} cores, Python {versions['python']}, jax "
        f"{versions['jax']}"
    ]
    if machine["platform"] == "cpu":
        lines.append("There is no accelerator here: both rates are the host's.")
    if found["agents"]:
        lines.append(f"{'env steps/s':20} {'default':>10} {'cpu':>10} {'ratio':>7}  actor, learner")
    lines += [
        f"{row['agent'] + ' ' + row['env']:20} {row['default']:10,.0f} {row['cpu']:10,.0f} "
        f"{row['ratio']:7.2f}  {row['actor_on']}, {row['learner_on']}"
        for row in found["agents"]
    ]
    lines += [
        f"update of {row['model']}: {row['jax_seconds']['partitioned'] * 1e3:.3f} ms partitioned "
        f"on a mesh of one, {row['jax_over_jit']:.2f} of jit's ({row['numpy_over_jit']:.2f} with "
        f"batches of numpy; at most {row['most']:.2f} is aimed at)"
        for row in found["updates"]
    ]
    return "\n".join([*lines, *(f"failed: {failure}" for failure in found["failures"])])


if __name__ == "__main__":
    sys.exit(main())
