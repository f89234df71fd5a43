"""The return of actions drawn uniformly: what a run that has learned nothing comes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree
from dm_env import specs

from ... import environments
from ...environments import action_masks
from ...launch.errors import RequestError
from ...launch.evaluation.evaluator import play
from ...launch.specification.recipe import Recipe

_EPISODES, _ENVS = 50, 10


def random_return(recipe: Recipe) -> float:
    """Plays the environment of a recipe, and returns the mean over 50 episodes.

    Raises:
      RequestError: if an action has no bounds to be drawn between.
    """
    with recipe.make_environment(seed=0, num_envs=_ENVS, evaluation=True) as environment:
        spec = environments.make_spec(environment).actions
        played = play(environment, _UniformActor(spec, recipe.env), _EPISODES)
    assert played is not None
    return float(np.mean(played.returns))


class _UniformActor:
    """Draws actions within the bounds of their spec, of those that are legal."""

    def __init__(self, spec: Any, env: str):
        self._spec = spec
        self._random = np.random.default_rng(0)
        for leaf in tree.flatten(spec):
            if not isinstance(leaf, specs.BoundedArray) or not np.all(
                np.isfinite([leaf.minimum, leaf.maximum])
            ):
                raise RequestError(
                    f"actions of {env} have no bounds to be drawn between, so that the range of "
                    "returns is not known; give a --margin."
                )

    def observe_first(self, timestep: Any) -> None: ...

    def observe(self, action: Any, timestep: Any) -> None: ...

    def select_action(self, observation: Any) -> Any:
        mask = action_masks.find(observation)
        if mask is None:
            return tree.map_structure(self._draw, self._spec)
        return action_masks.draw(mask, self._spec, self._random)

    def _draw(self, leaf: specs.BoundedArray) -> np.ndarray:
        shape = (_ENVS, *leaf.shape)
        if np.issubdtype(leaf.dtype, np.integer):
            return self._random.integers(
                leaf.minimum, leaf.maximum, shape, dtype=leaf.dtype, endpoint=True
            )
        return self._random.uniform(leaf.minimum, leaf.maximum, shape).astype(leaf.dtype)
