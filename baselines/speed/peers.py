"""Runs the same training with another library, for the speed benchmark to compare with.

This file is executed by the interpreter in which the other library is installed, so that it imports
nothing of this package, and nothing but the standard library until it knows what to run:

    PYTHON peers.py '{"peer": "sb3", "agent": "dqn", "env": "CartPole-v1", ...}'

The argument holds the fields of `PeerRun`; the last line of the output is one JSON object. From
within this package, `measure(python, settings)` does that and returns the object.

What is measured, in the same way for every library:

- The clock of the training stands still while the policy is evaluated.
- The warm-up lasts until the end of the second call of the library's `train`: it holds the steps
  that only fill the replay, and every compilation of acting and learning. Rates are those of the
  steps after it; what the warm-up took is given beside them.
- A step of N environments counts as N environment steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

_MODULES = {"sb3": "stable_baselines3", "sbx": "sbx"}
_ELSEWHERE = {("sb3", "qrdqn"): "sb3_contrib"}
"""Agents of a library that another package has."""
_WARMUP_CALLS = 2

_DQN = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
# From the RL Zoo (https://github.com/DLR-RM/rl-baselines3-zoo), hyperparams/AGENT.yml, in the names
# of stable-baselines3. "linear 1e-3" goes from 1e-3 down to 0 in the course of a run; "normal 0.1"
# is noise on actions of that standard deviation.
ZOO: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "CartPole-v1"): {"total_steps": 50_000, "num_envs": 1, "hyperparameters": _DQN},
    # Learning starts early, for a short run: the zoo waits for 100,000 steps.
    ("dqn", "ALE/Pong-v5"): {
        "total_steps": 5_000,
        "num_envs": 1,
        "hyperparameters": {
            "learning_rate": 1e-4,
            "batch_size": 32,
            "buffer_size": 10_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 1_000,
            "train_freq": 4,
            "gradient_steps": 1,
            "exploration_fraction": 0.1,
            "exploration_final_eps": 0.01,
        },
    },
    ("ppo", "CartPole-v1"): {
        "total_steps": 100_000,
        "num_envs": 8,
        "hyperparameters": {
            "learning_rate": "linear 1e-3",
            "clip_range": "linear 0.2",
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
        },
    },
    ("qrdqn", "CartPole-v1"): {
        "total_steps": 50_000,
        "num_envs": 1,
        "hyperparameters": _DQN | {"policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10}},
    },
    ("sac", "HalfCheetah-v5"): {
        "total_steps": 20_000,
        "num_envs": 1,
        "hyperparameters": {
            "learning_rate": 3e-4,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 10_000,
            "gamma": 0.99,
            "tau": 0.005,
            "train_freq": 1,
            "gradient_steps": 1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    },
    ("td3", "HalfCheetah-v5"): {
        "total_steps": 20_000,
        "num_envs": 1,
        "hyperparameters": {
            "learning_rate": 1e-3,
            "batch_size": 256,
            "buffer_size": 1_000_000,
            "learning_starts": 10_000,
            "gamma": 0.99,
            "tau": 0.005,
            "train_freq": 1,
            "gradient_steps": 1,
            "action_noise": "normal 0.1",
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    },
}


@dataclasses.dataclass(frozen=True)
class PeerRun:
    """One run of another library."""

    peer: str
    """"sb3" (stable-baselines3) or "sbx"."""
    agent: str
    """The library's class, in small letters: "dqn", "ppo", "sac"."""
    env: str
    """An id of Gymnasium. Atari games ("ALE/...") get the standard preprocessing."""
    total_steps: int
    """Environment steps of the whole run, the warm-up among them."""
    hyperparameters: dict[str, Any]
    """Arguments of the library's class."""
    num_envs: int = 1
    """Environments stepped together, in this process."""
    seed: int = 0
    """Of the library and of the environments."""
    target_return: float | None = None
    """Greedy evaluations go on until their mean return has reached this, with infinity to the end;
    None: no evaluations."""
    evaluate_every: int = 5000
    """Environment steps between evaluations."""
    evaluation_episodes: int = 20
    """Episodes of an evaluation, each in an environment of its own."""
    torch_threads: int = 1
    """Threads that torch computes with. On busy cores one is many times faster than all; on quiet
    ones it depends on the agent."""
    stop_at_target: bool = False
    """True ends the run at the target, instead of after `total_steps`."""

    def __post_init__(self) -> None:
        if self.peer not in _MODULES:
            raise ValueError(f"peer must be one of {', '.join(_MODULES)}, got {self.peer!r}")


def zoo(peer: str, agent: str, env: str, **changes: Any) -> PeerRun:
    """The RL Zoo's settings for an agent and an environment.

    Raises:
      ValueError: If they are not in `ZOO`; the message lists what is.
    """
    if (agent, env) not in ZOO:
        known = ", ".join(" ".join(key) for key in ZOO)
        raise ValueError(f"no settings for {agent} {env}; there are {known}")
    return PeerRun(peer, agent, env, **{**ZOO[agent, env], **changes})


def with_fused_steps(settings: PeerRun, count: int) -> PeerRun:
    """The same pace of learning in calls of `count` gradient steps each.

    The settings of an agent that learns from its last rollout are returned as they are.

    Raises:
      ValueError: If environment steps do not divide into such calls.
    """
    given = settings.hyperparameters
    if "gradient_steps" not in given:
        return settings
    every, rest = divmod(given["train_freq"] * count, given["gradient_steps"])
    if rest:
        raise ValueError(
            f"{given['gradient_steps']} gradient steps for {given['train_freq']} env steps cannot "
            f"be taken {count} at once; set steps_per_dispatch to a multiple."
        )
    changed = {**given, "train_freq": every, "gradient_steps": count}
    return dataclasses.replace(settings, hyperparameters=changed)


def measure(python: str, settings: PeerRun) -> dict[str, Any]:
    """Runs another library in its own interpreter.

    Args:
      python: The interpreter of an environment in which the library is installed.
      settings: What to run.

    Returns:
      The fields that `run` describes.

    Raises:
      ValueError: of `run_file`.
    """
    return run_file(python, __file__, dataclasses.asdict(settings), settings.peer)


def run_file(python: str, path: str, settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Runs a file in another interpreter.

    Args:
      python: The interpreter.
      path: Of the file, which imports nothing of this package.
      settings: Its argument, as JSON.
      name: Of the library that it runs.

    Returns:
      The JSON object that it prints in its last line.

    Raises:
      ValueError: If the interpreter cannot be run, or the run fails; the message ends with the
        last line that it wrote.
    """
    # -I keeps the file's folder, whose modules are not meant for it, off the import path.
    interpreter = os.path.abspath(python) if os.path.dirname(python) else python
    command = [interpreter, "-I", os.path.abspath(path), json.dumps(settings)]
    # The other library must not see the variables with which this process was set up.
    environment = {
        variable: value
        for variable, value in os.environ.items()
        if not variable.startswith(("PYTHON", "JAX_", "XLA_")) and variable != "NPROC"
    }
    try:
        # MuJoCo writes its warnings to a file where the process runs.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder,
                check=False,
            )
    except OSError as error:
        raise ValueError(f"{name} with {python}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"{name} with {python} failed: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


class Clock:
    """Wall and CPU seconds since it was made, without the time spent in `paused`."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def read(self) -> tuple[float, float]:
        """(wall seconds, CPU seconds of all threads)."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu

    @contextlib.contextmanager
    def paused(self) -> Any:
        wall, cpu = self.read()
        yield
        now = self.read()
        self._wall += now[0] - wall
        self._cpu += now[1] - cpu


def run(settings: PeerRun) -> dict[str, Any]:
    """Trains, in the interpreter that has the library.

    Returns:
      `env_steps_per_second` and `gradient_steps_per_second`: after the warm-up, wall time;
      the same `..._per_cpu_second`; `env_steps`, `gradient_steps`: of the whole run, and
      `gradient_steps_per_call` of the library's `train`;
      `setup_seconds`: importing the library and building the agent; `warmup_seconds`,
      `warmup_env_steps`; `wall_seconds`, `cpu_seconds`: of the training, warm-up included,
      evaluations left out; `target`: None, or the first evaluation that reached it, with its
      `env_steps`, `return`, `wall_seconds` and `cpu_seconds` on the same clock;
      `evaluations`: [env steps, mean return] of each; `bare_env_steps_per_second` and
      `bare_env_steps_per_cpu_second`: of a loop that only steps the environment; `versions`.
    """
    setup = Clock()
    key = (settings.peer, settings.agent)
    module = importlib.import_module(_ELSEWHERE.get(key, _MODULES[settings.peer]))
    algorithm = getattr(module, settings.agent.upper(), None)
    if algorithm is None:
        raise ValueError(f"{module.__name__} has no {settings.agent.upper()}")
    vectors = importlib.import_module("stable_baselines3.common.vec_env")
    callbacks = importlib.import_module("stable_baselines3.common.callbacks")
    importlib.import_module("torch").set_num_threads(settings.torch_threads)
    environment = vectors.DummyVecEnv([lambda: make(settings.env)] * settings.num_envs)
    environment.seed(settings.seed)
    policy = "CnnPolicy" if settings.env.startswith("ALE/") else "MlpPolicy"
    given = settings.hyperparameters.items()
    arguments = {name: _value(value, environment) for name, value in given}
    model = algorithm(policy, environment, seed=settings.seed, device="cpu", **arguments)
    setup_seconds = setup.read()[0]

    evaluations: list[tuple[int, float]] = []
    target: dict[str, Any] | None = None
    warmup: tuple[int, int, float, float] | None = None
    gradient_steps = calls = 0
    clock = Clock()
    train = model.train

    def counted(*positional: Any, **named: Any) -> None:
        nonlocal calls, gradient_steps, warmup
        train(*positional, **named)
        calls += 1
        gradient_steps += named.get("gradient_steps") or _on_policy_updates(model)
        if calls == _WARMUP_CALLS:
            warmup = (model.num_timesteps, gradient_steps, *clock.read())

    class Evaluate(callbacks.BaseCallback):  # type: ignore[misc,name-defined]
        due = settings.evaluate_every

        def _on_step(self) -> bool:
            nonlocal target
            if settings.target_return is None or target or self.num_timesteps < self.due:
                return True
            self.due += settings.evaluate_every
            with clock.paused():
                mean = evaluate(model, settings)
            evaluations.append((self.num_timesteps, mean))
            if mean >= settings.target_return:
                wall, cpu = clock.read()
                target = {"env_steps": self.num_timesteps, "return": mean}
                target |= {"wall_seconds": wall, "cpu_seconds": cpu}
            return not (target and settings.stop_at_target)

    model.train = counted
    model.learn(settings.total_steps, callback=Evaluate())
    wall, cpu = clock.read()
    if warmup is None:
        raise ValueError(f"{settings.total_steps} steps are too few for {_WARMUP_CALLS} updates")
    steps, gradients, seconds, cpu_seconds = warmup

    def rate(count: int, since: float) -> float | None:
        return count / since if count > 0 else None

    after, learned = model.num_timesteps - steps, gradient_steps - gradients
    return {
        "library": settings.peer,
        "env_steps_per_second": rate(after, wall - seconds),
        "env_steps_per_cpu_second": rate(after, cpu - cpu_seconds),
        "gradient_steps_per_second": rate(learned, wall - seconds),
        "gradient_steps_per_cpu_second": rate(learned, cpu - cpu_seconds),
        "env_steps": model.num_timesteps,
        "gradient_steps": gradient_steps,
        "gradient_steps_per_call": gradient_steps / calls,
        "setup_seconds": setup_seconds,
        "warmup_seconds": seconds,
        "warmup_cpu_seconds": cpu_seconds,
        "warmup_env_steps": steps,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "target": target,
        "evaluations": evaluations,
        **bare_rate(make(settings.env).unwrapped),
        "versions": _versions(settings.peer),
    }


def make(env: str) -> Any:
    """The environment, with the wrappers that the libraries' own helpers would put around it."""
    import gymnasium
    from stable_baselines3.common.monitor import Monitor

    if not env.startswith("ALE/"):
        return Monitor(gymnasium.make(env))
    gymnasium.register_envs(importlib.import_module("ale_py"))
    game = gymnasium.make(env, frameskip=1)
    screens = gymnasium.wrappers.AtariPreprocessing(game)
    return Monitor(gymnasium.wrappers.FrameStackObservation(screens, 4))


def evaluate(model: Any, settings: PeerRun) -> float:
    """The mean return of greedy episodes, all acting in one call."""
    import numpy as np

    environments = [make(settings.env) for _ in range(settings.evaluation_episodes)]
    seeds = range(10_000 + settings.seed, 10_000 + settings.seed + len(environments))
    pairs = zip(environments, seeds, strict=True)
    observations = [environment.reset(seed=seed)[0] for environment, seed in pairs]
    returns = np.zeros(len(environments))
    running = list(range(len(environments)))
    while running:
        # Always of the same size: another would be compiled anew by a library that compiles.
        actions, _ = model.predict(np.stack(observations), deterministic=True)
        for i in list(running):
            observations[i], reward, terminated, truncated, _ = environments[i].step(actions[i])
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
    for environment in environments:
        environment.close()
    return float(returns.mean())


def bare_rate(environment: Any, seconds: float = 1.0) -> dict[str, float]:
    """Rates of a loop that does nothing but step (and reset) the environment, as a yardstick."""
    environment.reset(seed=0)
    environment.action_space.seed(0)
    actions = [environment.action_space.sample() for _ in range(1000)]
    steps, clock = 0, Clock()
    while steps == 0 or clock.read()[0] < seconds:
        for action in actions:
            _, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                environment.reset()
        steps += len(actions)
    wall, cpu = clock.read()
    return {
        "bare_env_steps_per_second": steps / wall,
        "bare_env_steps_per_cpu_second": steps / cpu,
    }


def _on_policy_updates(model: Any) -> int:
    """Gradient steps of one `train` of an agent that learns from its last rollout."""
    rollout = model.n_steps * model.n_envs
    return model.n_epochs * math.ceil(rollout / model.batch_size)


def _value(value: Any, environment: Any) -> Any:
    """A hyperparameter from JSON: "linear X" falls from X to 0, "normal X" is noise on actions."""
    if isinstance(value, str) and value.startswith("linear "):
        start = float(value.removeprefix("linear "))
        return lambda remaining: remaining * start
    if isinstance(value, str) and value.startswith("normal "):
        std = float(value.removeprefix("normal "))
        noise = importlib.import_module("stable_baselines3.common.noise")
        numpy = importlib.import_module("numpy")
        shape = environment.action_space.shape
        return noise.NormalActionNoise(numpy.zeros(shape), numpy.full(shape, std))
    return value


def _versions(peer: str) -> dict[str, str]:
    from importlib import metadata

    names = ["stable_baselines3", "gymnasium", "numpy", "torch"]
    names += ["sbx-rl", "jax"] if peer == "sbx" else []
    return {"python": sys.version.split()[0], **{name: metadata.version(name) for name in names}}


if __name__ == "__main__":
    print(json.dumps(run(PeerRun(**json.loads(sys.argv[1])))))
