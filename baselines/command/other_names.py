"""Flags and commands of other libraries, and what to write in their place."""

from __future__ import annotations

from collections.abc import Sequence

_WORKERS = "--launch processes --actors N"
_ACCELERATOR = "--learner-device gpu or cpu (CUDA_VISIBLE_DEVICES says which)"
_ALWAYS = "nothing (DIR/metrics.jsonl and DIR/tensorboard are always written)"

FLAGS = {
    "--algo": "the agent's name after the command (troupe train ppo)",
    "--capture-video": "troupe evaluate DIR --video FILE, after it",
    "--cuda": _ACCELERATOR,
    "--env-id": "--env ID",
    "--env-kwargs": "--env.KEY VALUE",
    "--env-name": "--env ID",
    "--eval-episodes": "--evaluation-episodes N",
    "--eval-freq": "--evaluate-every N",
    "--evaluation-interval": "--evaluate-every N",
    "--evaluation-num-episodes": "--evaluation-episodes N",
    "--exp-name": "--out DIR",
    "--framestack": "nothing (ALE/ ids are stacks of four; others stack in a factory)",
    "--gpu": _ACCELERATOR,
    "--gpus": _ACCELERATOR,
    "--hyperparams": "--config.FIELD VALUE",
    "--load": "--from DIR, or troupe resume DIR",
    "--load-path": "--from DIR, or troupe resume DIR",
    "--local-mode": "--launch local",
    "--log-dir": "--out DIR",
    "--log-interval": _ALWAYS,
    "--logdir": "--out DIR",
    "--max-steps": "--steps N",
    "--n-eval-episodes": "--evaluation-episodes N",
    "--n-timesteps": "--steps N",
    "--n-trials": "troupe sweep",
    "--norm-obs": "normalized+ before the agent's name",
    "--num-actors": _WORKERS,
    "--num-cpus": "--actors N",
    "--num-env-runners": _WORKERS,
    "--num-gpus": "--learner-device gpu, or --mesh data=N for several",
    "--num-gpus-per-learner": "--learner-device gpu, or --mesh data=N for several",
    "--num-learners": "--learner-hosts N, or --mesh data=N",
    "--num-seeds": "--seeds N",
    "--num-timesteps": "--steps N",
    "--num-workers": _WORKERS,
    "--optimize": "troupe sweep",
    "--optimize-hyperparameters": "troupe sweep",
    "--output-dir": "--out DIR",
    "--progress": "nothing (a terminal has a progress line)",
    "--progress-bar": "nothing (a terminal has a progress line)",
    "--render": "troupe evaluate DIR --render, after it",
    "--resume": "troupe resume DIR",
    "--resume-path": "troupe resume DIR",
    "--run": "the agent's name after the command (troupe train ppo)",
    "--save-dir": "--out DIR",
    "--save-freq": "--checkpoint-every SECONDS",
    "--save-model": "nothing (every run saves itself)",
    "--save-path": "--out DIR",
    "--stop-reward": "--target RETURN --stop-at-target",
    "--tensorboard-log": _ALWAYS,
    "--test-num": "--evaluation-episodes N",
    "--timesteps": "--steps N",
    "--torch-deterministic": "nothing (a seed says everything of a local run)",
    "--total-timesteps": "--steps N",
    "--track": "--wandb PROJECT",
    "--trained-agent": "--from DIR, or troupe resume DIR",
    "--training-num": "--config.num_envs N",
    "--vec-env": f"--config.num_envs N, or {_WORKERS}",
    "--verbose": "nothing (progress is shown)",
    "--wandb-entity": "--wandb PROJECT",
    "--wandb-project": "--wandb PROJECT",
    "--wandb-project-name": "--wandb PROJECT",
    "-f": "--out DIR",
    "-i": "--from DIR, or troupe resume DIR",
    "-n": "--steps N",
    "-params": "--config.FIELD VALUE",
}
"""Flags of stable-baselines3's Zoo, CleanRL, RLlib, Tianshou and Acme."""

COMMANDS = {
    "benchmark": "troupe compare",
    "enjoy": "troupe evaluate DIR",
    "eval": "troupe evaluate DIR",
    "fit": "troupe train AGENT --env ID",
    "learn": "troupe train AGENT --env ID",
    "load": "troupe evaluate DIR",
    "optimize": "troupe sweep",
    "play": "troupe evaluate DIR --render",
    "predict": "troupe evaluate DIR",
    "rollout": "troupe evaluate DIR",
    "run": "troupe train AGENT --env ID",
    "test": "troupe evaluate DIR",
    "train.py": "troupe train AGENT --env ID",
    "tune": "troupe sweep",
    "watch": "troupe evaluate DIR --render",
}
"""Commands of other libraries, and the scripts that are theirs."""


def hint(arguments: Sequence[str], message: str) -> str:
    """Returns what to write in place of flags, fields and commands that the parser refused.

    Args:
      arguments: of the command line.
      message: the parser's.

    Returns:
      The end of a message; "" if nothing is known of them.
    """
    from ...agents import find_builder, other_names
    from ...launch.specification import fields

    if "invalid choice" in message and "COMMAND" in message:
        meant = arguments[0] if arguments[0] in COMMANDS else None
        flags = [word for word in arguments if word in FLAGS]
        if meant is None and flags:
            return f"; begin with `troupe train AGENT`; in place of {flags[0]}: {FLAGS[flags[0]]}"
        return f"; in place of {meant}: {COMMANDS[meant]}" if meant else ""
    try:
        known = fields.fields(find_builder(arguments[1]).config_class)
    except (ValueError, IndexError):
        known = {}
    mentioned = {word.partition("=")[0] for word in message.split()}
    meant_fields, words = [], []
    for flag in (word.partition("=")[0] for word in arguments if word.startswith("-")):
        name = flag.lstrip("-").replace("-", "_")
        spelt = flag.replace("_", "-").lower()
        refused = "required" in message or flag in mentioned
        if name in known:
            meant_fields.append(f"--config.{name}")
        elif refused and spelt in FLAGS:
            words.append(f"in place of {flag}: {FLAGS[spelt]}")
        elif refused and name in other_names.ELSEWHERE:
            words.append(f"in place of {flag}: {other_names.ELSEWHERE[name]}")
        elif refused and (near := other_names.find_fields(name, known)):
            words.append(f"in place of {flag}: --config.{' or --config.'.join(near)}")
    if meant_fields:
        words.insert(0, f"did you mean {' and '.join(meant_fields)}?")
    return f"; {'; '.join(words)}" if words else ""
