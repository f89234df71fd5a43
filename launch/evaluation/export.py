"""A policy as one file that jax alone can run.

    policy.zip
        policy.json    what it is: the agent, its evaluation, specs of observations and actions
        init           seed (uint32 []) -> state
        act            (observation, state) -> (action, state)
        reset          state -> state, where an episode begins

The three functions are serialised by `jax.export`, the parameters within `act`. A state is a tuple
of arrays: what a recurrent policy remembers, and the randomness of one that draws.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from dm_env import specs
from jax import export as jax_export

from ...agents.snapshots import typed, words_of
from .. import extras
from ..errors import RequestError
from ..experiment import Experiment
from ..files.directory import RunDirectory
from ..files.result import versions
from ..logging.report import Reporter
from .loading import Which
from .policy import Policy, load_policy

Nest = Any

FORMAT = 1
PLATFORMS = ("cpu", "cuda", "tpu")
"""Those for which a policy is exported where jax can."""


def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    which: Which = "newest",
    *,
    experiment: Experiment | None = None,
    reporter: Reporter | None = None,
) -> pathlib.Path:
    """Writes the policy of a run with its specs as one file (see above).

    Args:
      run: its directory; it may have ended or not.
      out: the file, whose name ends in .zip; None: `policy.zip` in the run's directory.
      which, experiment, reporter: as of `load_policy`.

    Returns:
      The file.

    Raises:
      RequestError: as of `load_policy`; if the file is named otherwise or cannot be written; if jax
        cannot export the policy, or lacks a package for it.
      CheckpointError: if what was learned is damaged.
    """
    path = RunDirectory(run).path / "policy.zip" if out is None else pathlib.Path(out)
    if path.suffix != ".zip":
        raise RequestError(
            f"cannot export to {path}: what is written is a zip of programs of jax.export, and its "
            "name must end in .zip; there is no other format."
        )
    extras.require("flatbuffers", "export", "writing what jax exports")
    reporter = reporter or Reporter()
    policy = load_policy(run, which, experiment=experiment, reporter=reporter)
    functions, platforms = _exported(policy)
    missing = [name for name in PLATFORMS if name not in platforms]
    if missing:
        reporter.line(f"warning: jax cannot export this policy for {', '.join(missing)}.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(temporary, "w") as archive:
            about = {**_about(policy), "platforms": list(platforms)}
            archive.writestr("policy.json", json.dumps(about, indent=1))
            for name, blob in functions.items():
                archive.writestr(name, blob)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RequestError(
            f"cannot write the policy into {path}: {error.strerror or error}; name another file "
            "with --out."
        ) from error
    return path


def _exported(policy: Policy) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The functions of a policy, and the platforms for which they are."""
    functions = _functions(policy)
    failure: Exception | None = None
    for platforms in (PLATFORMS, ("cpu", "cuda"), ("cpu", "tpu"), ("cpu",)):
        try:
            return {
                name: _serialised(function, arguments, platforms)
                for name, (function, *arguments) in functions.items()
            }, platforms
        except (NotImplementedError, ValueError, TypeError) as error:
            failure = error
    reason = " ".join(str(failure).split())[:300]
    raise RequestError(f"jax cannot export the policy of {policy.agent}: {reason}") from failure


def _serialised(function: Callable[..., Any], arguments: Any, platforms: tuple[str, ...]) -> bytes:
    exported = jax_export.export(jax.jit(function), platforms=platforms)(*arguments)
    return bytes(exported.serialize())


def _functions(policy: Policy) -> dict[str, tuple[Any, ...]]:
    """By name: a function with tuples of arrays as states, and the shapes of its arguments."""
    like = jax.eval_shape(policy.core.init, jax.random.key(0))
    likes, structure = jax.tree.flatten(like)

    def pack(state: Nest) -> tuple[Any, ...]:
        return tuple(words_of(leaf) for leaf in jax.tree.leaves(state))

    def unpack(leaves: tuple[Any, ...]) -> Nest:
        return jax.tree.unflatten(structure, map(typed, leaves, likes))

    def init(seed: Any) -> Any:
        return pack(policy.init(jax.random.key(seed)))

    def act(observation: Nest, leaves: Any) -> Any:
        action, state = policy.act(policy.parameters, observation, unpack(leaves))
        return action, pack(state)

    def reset(leaves: Any) -> Any:
        return pack(policy.reset(unpack(leaves)))

    seed = jax.ShapeDtypeStruct((), np.uint32)
    observation = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), policy.spec.observations
    )
    state = jax.eval_shape(init, seed)
    return {"init": (init, seed), "act": (act, observation, state), "reset": (reset, state)}


def _about(policy: Policy) -> dict[str, Any]:
    """Returns the content of `policy.json`."""
    functions = _functions(policy)
    init: Callable[..., Any] = functions["init"][0]
    state = jax.eval_shape(init, functions["init"][1])
    return {
        "format": FORMAT,
        "agent": policy.agent,
        "env": policy.env,
        "which": policy.which,
        "actor_steps": policy.actor_steps,
        "evaluation": policy.evaluation,
        "observation": jax.tree.map(_described, policy.spec.observations),
        "action": jax.tree.map(_described, policy.spec.actions),
        "state": [{"shape": list(leaf.shape), "dtype": leaf.dtype.name} for leaf in state],
        "versions": versions(),
    }


def _described(spec: specs.Array) -> dict[str, Any]:
    """One array of a space. Bounds that are the same for all its numbers are one number, and null
    where there is none."""
    found: dict[str, Any] = {"shape": list(spec.shape), "dtype": np.dtype(spec.dtype).name}
    if isinstance(spec, specs.DiscreteArray):
        return {**found, "num_values": int(spec.num_values)}
    if isinstance(spec, specs.BoundedArray):
        for name in ("minimum", "maximum"):
            bound = np.broadcast_to(getattr(spec, name), spec.shape)
            same = bound.size and (bound == bound.flat[0]).all()
            found[name] = _numbers((bound.flat[0] if same else bound).tolist())
    return found


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value if np.isfinite(value) else None
