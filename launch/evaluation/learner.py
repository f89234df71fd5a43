"""What a run's learner holds as named arrays: parameters, targets, and the optimizer's state."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ... import environments
from ...agents.builder import Builder
from ...agents.interfaces import Update
from ...agents.learning.learner import saved_like
from ...agents.snapshots import from_host
from .. import seeds
from ..errors import RequestError
from ..experiment import Experiment
from ..logging.report import Reporter
from .loading import Learned, learned

if TYPE_CHECKING:
    from ...environments import EnvironmentSpec

Nest = Any


@dataclasses.dataclass(frozen=True)
class LoadedLearner:
    """The state of a run's learner, and the update that goes on with it:

    state, output = jax.jit(found.update.step)(found.state, batch)
    """

    agent: str
    env: str
    path: pathlib.Path
    """Of the checkpoint."""
    spec: EnvironmentSpec
    """Of one environment."""
    networks: Any
    """As the builder makes them."""
    update: Update
    state: Nest
    """Of the update: numpy arrays, and PRNG keys."""
    actor_steps: int
    """Of training that it had behind it."""
    learner_steps: int

    @property
    def variables(self) -> dict[str, Nest]:
        """What the learner gives to actors, by name; "policy" is among them."""
        return self.update.variables(self.state)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays of the state by their names (`name_arrays`), but for PRNG keys."""
        return {name: np.asarray(leaf) for name, leaf in name_arrays(self.state).items()}


def load_learner(
    run: str | os.PathLike[str],
    *,
    experiment: Experiment | None = None,
    reporter: Reporter | None = None,
) -> LoadedLearner:
    """Loads what the learner of a run had come to at its newest checkpoint. No replay is read.

    Args:
      run: its directory; it may have ended or not.
      experiment: that of the run; None: as its `config.json` says.
      reporter: where warnings go.

    Raises:
      RequestError: if there is no such run or nothing learned yet, its experiment is not known, or
        its learner is of the builder's own.
      CheckpointError: if what was learned is damaged.
    """
    found = learned(run, "newest", experiment, (reporter or Reporter()).line)
    spec, networks, update = parts(found.experiment)
    saved = found.checkpoint.read("learner", saved_like(update))
    shapes = jax.eval_shape(update.init, jax.random.key(0))
    counters = found.checkpoint.counters
    return LoadedLearner(
        agent=found.experiment.builder.name,
        env=found.experiment.env,
        path=found.checkpoint.path,
        spec=spec,
        networks=networks,
        update=update,
        state=from_host(saved["state"], shapes),
        actor_steps=counters["actor_steps"],
        learner_steps=counters["learner_steps"],
    )


def best_policy(found: Learned) -> dict[str, np.ndarray]:
    """Returns the parameters of a policy by the names that they have in the learner's state.

    Raises:
      RequestError: if the learner is of the builder's own.
    """
    spec, networks, update = parts(found.experiment)
    (policy,) = found.source(spec, networks).get_variables(("policy",))
    names = _names_of_policy(update)
    return {
        name: np.asarray(leaf)
        for name, leaf in zip(names, jax.tree.leaves(policy), strict=True)
        if name is not None
    }


def parts(experiment: Experiment) -> tuple[EnvironmentSpec, Any, Update]:
    """Returns the spec of an experiment's environments, its networks and its update.

    Raises:
      RequestError: if its learner is of the builder's own.
    """
    builder = experiment.builder
    if type(builder).make_learner is not Builder.make_learner:
        raise RequestError(
            f"{builder.name} has a make_learner of its own, and nobody else knows what it saves; "
            "load_policy gives its policy."
        )
    seed = seeds.derive(experiment.seed, "evaluation_environment")
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=True) as environment:
        spec = environments.make_spec(environment)
    networks = experiment.make_networks(spec)
    return spec, networks, builder.make_update(networks, spec)


def array_name(path: Any) -> str:
    """Returns the name of a leaf by its path in a learner's state: params/mlp/~/linear_0/w."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def name_arrays(state: Nest) -> dict[str, Any]:
    """Returns the leaves of a learner's state by their names.

    PRNG keys are left out: they are no part of what was learned.
    """
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {
        array_name(path): leaf
        for path, leaf in leaves
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


def _names_of_policy(update: Update) -> list[str | None]:
    """Returns of each leaf of the policy's variables which of the state's it is; None: none."""
    shapes = jax.eval_shape(update.init, jax.random.key(0))
    paths = [array_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]
    program = jax.make_jaxpr(lambda state: update.variables(state)["policy"])(shapes).jaxpr
    known = dict(zip(map(id, program.invars), paths, strict=True))
    return [known.get(id(one)) for one in program.outvars]
