"""Begins a run with what another has learned.

Its directory is made with a first checkpoint, which holds the learner alone and no step. From that
the run goes on, in whatever launch.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..agents.snapshots import to_host
from . import seeds
from .errors import RequestError
from .evaluation import learner as learners
from .evaluation.loading import learned
from .experiment import Experiment
from .files.checkpoints import Store
from .files.directory import RunDirectory
from .logging.report import Reporter
from .roles import KINDS
from .specification.begun import begun

if TYPE_CHECKING:
    from .specification.begun import Begun
    from .specification.recipe import Recipe

Nest = Any
_NO_STEPS: dict[str, Any] = {
    **dict.fromkeys(("actor_steps", "learner_steps", "episodes", "evaluations", "incarnations"), 0),
    **dict.fromkeys(("wall_seconds", "train_seconds"), 0.0),
    "resumed": -1,  # Going on from here is the first time, with the environments of any other.
}


@dataclasses.dataclass(frozen=True)
class Origin:
    """The weights that a run begins with."""

    run: str
    """Directory of the run that has learned them."""
    best: bool = False
    """Those of its best policy by its evaluations, and nothing else; else of the learner at its
    newest checkpoint, with targets and the optimizer's state."""
    only: Sequence[str] = ()
    """Patterns of names of arrays (`*` stands for anything), as `troupe weights` lists them;
    empty: all that there are."""


def begin_if_asked(recipe: Recipe | Begun, out: str | os.PathLike[str], reporter: Reporter) -> bool:
    """Makes the directory of a new run, where its recipe asks for another's weights (`begin`).

    Returns:
      Whether it does: then the run is to be gone on with.
    """
    origin = getattr(recipe, "origin", None)
    if origin is None:
        return False
    begin(recipe.experiment(), out, Origin(**origin), request=recipe.to_json(), reporter=reporter)
    return True


def begin(
    experiment: Experiment,
    out: str | os.PathLike[str],
    origin: Origin,
    *,
    request: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Makes the directory of a run, which is then gone on with (`resume=True`).

    Args:
      experiment: of the new run. Its agent, config, environment and seed may be others.
      out: its directory, new or empty.
      origin: where its weights come from.
      request: what its `config.json` shall say; None: what the experiment does.
      reporter: told how much was taken, and of damaged checkpoints.

    Raises:
      RequestError: if there is nothing learned, or it does not fit; or the directory is not empty.
      CheckpointError: if what was learned is damaged, or the checkpoint could not be written.
    """
    reporter = reporter or Reporter()
    state, line = _state(experiment, origin, reporter)
    store = Store(
        RunDirectory(out).checkpoints,
        experiment.checkpointing.keep,
        address=experiment.checkpointing.copies,
    )
    store.claim()
    with RunDirectory(out) as directory:
        directory.create()
        request = request or begun(experiment, KINDS[0], {}).to_json()
        directory.write(directory.config, request)
        saved = {"steps": np.int64(0), "state": to_host(state)}
        store.save({"learner": saved}, _NO_STEPS, experiment.identity())
        store.copied(None)
    reporter.line(line)


def _state(experiment: Experiment, origin: Origin, reporter: Reporter) -> tuple[Nest, str]:
    """Returns the state that a new learner begins with, and a line on where it is from."""
    if origin.best:
        found = learned(origin.run, "best", None, reporter.line)
        given, path = learners.best_policy(found), found.checkpoint.path
        actor_steps = found.checkpoint.counters["actor_steps"]
    else:
        whole = learners.load_learner(origin.run, reporter=reporter)
        given, path, actor_steps = whole.arrays, whole.path, whole.actor_steps
    _, _, update = learners.parts(experiment)
    key = jax.random.key(seeds.derive(experiment.seed, "learner"))
    state = jax.jit(update.init)(key)
    names = learners.name_arrays(state)
    taken = _taken(given, names, origin)
    if origin.best:
        taken |= _targets(taken, names)
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves = [taken.get(learners.array_name(where), leaf) for where, leaf in paths]
    line = (
        f"begins with {len(taken)} of {len(names)} arrays of the learner from {path}, after "
        f"{actor_steps:,} actor steps"
    )
    return jax.tree.unflatten(structure, leaves), line


def _taken(
    given: Mapping[str, np.ndarray], names: Mapping[str, Any], origin: Origin
) -> dict[str, np.ndarray]:
    """Returns the arrays that are asked for, by name.

    Raises:
      RequestError: if one does not fit, or a pattern is of none.
    """
    for pattern in origin.only:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in given):
            raise RequestError(
                f"--from-only {pattern} is of no array that {origin.run} has learned; "
                f"`troupe weights {origin.run}` lists them."
            )
    asked = {
        name: array
        for name, array in given.items()
        if not origin.only or any(fnmatch.fnmatchcase(name, one) for one in origin.only)
    }
    wrong = [name for name, array in asked.items() if not _fits(array, names.get(name))]
    if not origin.only and not origin.best:
        wrong += [name for name in names if name not in given]
    if wrong:
        name = wrong[0]
        there, here = (_type(arrays.get(name)) for arrays in (given, names))
        raise RequestError(
            f"{len(wrong)} arrays of {origin.run} do not fit this agent on this environment: "
            f"{name} is {there} there and {here} here; take those that do with --from-only PATTERN "
            f"(`troupe weights {origin.run}` lists them)."
        )
    return asked


def _targets(taken: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the parameters of target networks that follow those that are taken."""
    found = {}
    for name, leaf in names.items():
        field, _, rest = name.partition("/")
        for other, array in taken.items():
            if "target" in field and rest and other.partition("/")[2] == rest:
                found.update({name: array} if _fits(array, leaf) else {})
    return found


def _fits(array: Any, like: Any) -> bool:
    return like is not None and (array.shape, array.dtype) == (like.shape, like.dtype)


def _type(array: Any) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"
