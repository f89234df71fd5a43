"""Ids of environments of several agents: "pettingzoo:FAMILY/NAME" for one of PettingZoo's, and
"pettingzoo:MODULE:FUNCTION" for what a function of a module makes."""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import warnings
from collections.abc import Mapping
from typing import Any

from .. import registry
from ..errors import EnvironmentFault, InvalidOptionError
from ..seeding import derive_seed
from .agent_vector import AgentVector
from .parallel import ParallelEnvironment, require_parallel

PREFIX = "pettingzoo:"
_EXTRA = "pettingzoo"
_MOVED = {"mpe": "mpe2"}
"""Families that are packages of their own now."""
_OPTIONS = ("max_episode_steps", "agent_indicator", "pad_observations")


def make(id: str, seed: int, num_envs: int | None, **options: Any) -> AgentVector:
    """Makes as many environments as have `num_envs` agents or more.

    Args:
      id: `PREFIX` and a name.
      seed: at least 0; environment i has `derive_seed(seed, i)`.
      num_envs: streams, at least.
      **options: of `ParallelEnvironment`, `render_mode`, and the environment's own.

    Raises:
      UnknownEnvironmentError: if there is no such id; the message lists near ones.
      MissingExtraError: if a package that it needs is not installed.
      InvalidOptionError: if an argument has a value that it cannot have, the agents take turns,
        or `num_envs` is None.
      UnsupportedSpaceError: if the agents' spaces differ, or have no spec.
    """
    if num_envs is None:
        raise InvalidOptionError(
            f"{id} has a stream for each agent: give num_envs, and get a vector"
        )

    def make_one(index: int) -> ParallelEnvironment:
        return _make_one(id, derive_seed(seed, index), dict(options))

    first = make_one(0)
    count = -(-num_envs // len(first.agents))
    return AgentVector([first, *(make_one(index) for index in range(1, count))])


def num_agents(id: str, options: Mapping[str, Any]) -> int:
    """Returns how many agents the environment of an id has, each a stream; 1 for other ids.

    Args:
      id: of any environment.
      options: of `environments.make`.

    Raises:
      EnvironmentFault: as of `make`.
    """
    if not id.startswith(PREFIX):
        return 1
    return _num_agents(id, json.dumps(dict(options), sort_keys=True, default=repr))


@functools.lru_cache(maxsize=16)
def _num_agents(id: str, options: str) -> int:
    with make(id, 0, 1, **json.loads(options)) as environment:
        return environment.num_agents


def _make_one(id: str, seed: int, options: dict[str, Any]) -> ParallelEnvironment:
    common = {name: options.pop(name) for name in ("actions", "reward_clip") if name in options}
    own = {name: options.pop(name) for name in _OPTIONS if name in options}
    if options.get("render_mode") is None:
        options.pop("render_mode", None)
    try:
        environment = _creator(id)(**options)
    except EnvironmentFault:
        raise
    except ImportError as error:
        raise registry.missing_extra(id, _EXTRA, error) from error
    except Exception as error:  # What a constructor says of an argument that it cannot take.
        if not options:
            raise
        raise registry.invalid_arguments(id, options, error) from error
    require_parallel(environment, id)
    return ParallelEnvironment(environment, seed=seed, name=id, **common, **own)


def _creator(id: str) -> Any:
    """The function that makes the environment of an id."""
    name = id.removeprefix(PREFIX)
    place, colon, function = name.rpartition(":")
    if not colon:
        return _of_pettingzoo(id, name)
    return registry.import_function(id, place, function)


def _of_pettingzoo(id: str, name: str) -> Any:
    package = registry.import_extra("pettingzoo", _EXTRA, id)
    family, _, task = name.partition("/")
    names = [one.name for one in pkgutil.iter_modules(package.__path__)]
    families = [one for one in names if one not in ("env_registry", "test", "utils")]
    registry.check_known(f"{PREFIX}{family}", [f"{PREFIX}{one}" for one in families])
    place = _MOVED.get(family, f"pettingzoo.{family}")
    listed = registry.import_extra(place, _EXTRA, id)
    known = [one.name for one in pkgutil.iter_modules(listed.__path__)]
    versioned = [one for one in known if re.search(r"_v\d+$", one)]
    registry.check_known(id, [f"{PREFIX}{family}/{one}" for one in versioned])
    with warnings.catch_warnings():  # From 1.27 on it would have its own `make` called.
        warnings.simplefilter("ignore", DeprecationWarning)
        module = registry.import_extra(f"{place}.{task}", _EXTRA, id)
    if not hasattr(module, "parallel_env"):
        raise InvalidOptionError(
            f"{id} is an AEC environment, whose agents take turns; only parallel ones can be "
            "trained on, whose agents act at once"
        )
    return module.parallel_env
