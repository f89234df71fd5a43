"""Lookup of ids of environments, near matches of unknown ids, and the extras they need."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium

from .errors import InvalidOptionError, MissingExtraError, UnknownEnvironmentError

# The extra of this package that brings what the environments of a module need.
_EXTRAS = {
    "ale_py": "atari",
    "shimmy": "atari",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minatar": "minatar",
}
_FAMILIES = {"ALE": "ale_py", "MinAtar": "minatar.gym"}
"""Modules of the games whose ids begin so, which Gymnasium knows only once they are imported."""
_NEAR = 5
_ELSEWHERE = (
    (r"(?:gym|gymnasium):(.*)", r"\1"),
    (r"([A-Za-z]+?)(?:Deterministic|NoFrameskip)?-v\d+", r"ALE/\1-v5"),
    (r"([A-Za-z0-9]+?)(?:Bullet|PyBullet)Env-v\d+", r"\1-v5"),
    (
        r"((?:Fetch|HandManipulate|AntMaze|PointMaze|Adroit|FrankaKitchen).*)",
        r"gymnasium_robotics:\1",
    ),
    (r"((?:MiniGrid|BabyAI)-.*)", r"minigrid:\1"),
)
"""Ids of other packages and of earlier versions, as patterns, and those of today. One with a module
stands for a package that registers it; others are said where they exist."""
_OWN = {
    "CartPoleMasked-v1": ("masked:MaskedCartPole", 500),
    "PendulumMasked-v1": ("masked:MaskedPendulum", 200),
}
"""Environments of this package: where they are, and their time limits."""

# As Gymnasium's own, so that all that is said of its ids holds for these.
for _id, (_where, _limit) in _OWN.items():
    if _id not in gymnasium.registry:
        gymnasium.register(_id, f"{__package__}.{_where}", max_episode_steps=_limit)


def registered_ids() -> list[str]:
    """The ids of every Gymnasium environment that could be made here, Atari's included."""
    for family, module in _FAMILIES.items():
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            register_family(f"{family}/")
    return sorted(gymnasium.registry)


def register_family(id: str) -> None:
    """Has the package of an Atari or a MinAtar game register its ids.

    Raises:
      MissingExtraError: if it is not installed.
    """
    family = id.partition("/")[0]
    if family not in _FAMILIES:
        return
    games = import_extra(_FAMILIES[family], _EXTRAS[_FAMILIES[family].partition(".")[0]], id)
    if family == "ALE":
        games.ALEInterface.setLoggerMode(games.LoggerMode.Error)  # Else it prints a banner.
    elif not any(name.startswith(f"{family}/") for name in gymnasium.registry):
        games.register_envs()


def check_known(id: str, known: Iterable[str]) -> None:
    """Accepts an id that is among `known`.

    Raises:
      UnknownEnvironmentError: if it is not; the message lists the nearest that are.
    """
    ids = list(known)
    if id in ids:
        return
    today = [re.sub(pattern, new, id) for pattern, new in _ELSEWHERE if re.fullmatch(pattern, id)]
    today = [one for one in today if one in ids or ":" in one]
    if today:
        package = today[0].partition(":")[0] if ":" in today[0] else ""
        needs = f", of the package {package.replace('_', '-')}" if package else ""
        raise UnknownEnvironmentError(f"unknown environment {id!r}; it is {today[0]}{needs}")
    # Without regard to capitals, which are what is most often wrong.
    by_lower = {name.lower(): name for name in ids}
    near = difflib.get_close_matches(id.lower(), by_lower, n=_NEAR, cutoff=0.5)
    hint = f"there are {len(ids)}, for example {', '.join(ids[:_NEAR])}"
    if near:
        hint = f"near names: {', '.join(by_lower[name] for name in near)}"
    raise UnknownEnvironmentError(f"unknown environment {id!r}; {hint}")


def newer_version(id: str) -> str:
    """A hint that names the newest version of an id; "" if `id` is the newest."""
    name, _, version = id.rpartition("-v")
    versions = [
        int(one.rpartition("-v")[2])
        for one in gymnasium.registry
        if re.fullmatch(rf"{re.escape(name)}-v\d+", one)
    ]
    newest = max(versions, default=0)
    return f"; there is {name}-v{newest}" if version.isdigit() and newest > int(version) else ""


def import_extra(module: str, extra: str, id: str) -> types.ModuleType:
    """Imports a module that only an extra installs.

    Raises:
      MissingExtraError: if it, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(id, extra, error) from error


def import_function(id: str, module: str, name: str) -> Callable[..., Any]:
    """Returns the function of a user's own module that an id names.

    Raises:
      UnknownEnvironmentError: if the module cannot be imported, or has no such function.
    """
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # It may have mistakes of any kind.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnknownEnvironmentError(
            f"unknown environment {id!r}; its module cannot be imported: {reason}"
        ) from error
    if not callable(found):
        raise UnknownEnvironmentError(
            f"unknown environment {id!r}; {module} has no function {name}"
        )
    return found


def extra_of(specification: gymnasium.envs.registration.EnvSpec) -> str | None:
    """The extra that an environment of Gymnasium needs, if any does."""
    entry = specification.entry_point
    where = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    for module, extra in _EXTRAS.items():
        if where.startswith(module):
            return extra
    return None


def missing_extra(id: str, extra: str | None, error: Exception) -> MissingExtraError:
    """Builds the error that names the extra to install for `id`, which failed with `error`."""
    reason = " ".join(str(error).split())
    if extra is None:
        return MissingExtraError(f"{id} needs a package that is not installed: {reason}")
    limit = (
        " under Python 3.12 or older" if extra == "dm_control" else ""
    )  # As labmaze, which it needs.
    return MissingExtraError(
        f"{id} needs an extra: pip install 'troupe[{extra}]'{limit} ({reason})"
    )


def invalid_arguments(
    id: str, arguments: Mapping[str, Any], error: Exception
) -> InvalidOptionError:
    """Builds the error that says what a constructor said of arguments that it cannot take."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    reason = " ".join(str(error).split()) or type(error).__name__
    return InvalidOptionError(f"{id} cannot have {given}: {reason}")


def parameters(
    specification: gymnasium.envs.registration.EnvSpec,
) -> Mapping[str, inspect.Parameter] | None:
    """Returns the parameters of a constructor that a user may give; None if it may take any."""
    entry = specification.entry_point
    if entry is None:
        return None
    creator = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
    try:
        found = dict(inspect.signature(creator).parameters)
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in found.values()):
        return None
    found.pop("render_mode", None)
    return found


def check_arguments(
    id: str, known: Mapping[str, inspect.Parameter] | None, arguments: Mapping[str, Any]
) -> None:
    """Compares arguments with the parameters of an environment's constructor.

    Raises:
      InvalidOptionError: if there is none of a name, or a value is a text where a number or a truth
        is expected.
    """
    for name, value in arguments.items():
        if known is None or name == "render_mode":
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else ""
            takes = hint or (f"it takes {', '.join(known)}" if known else "it takes no arguments")
            raise InvalidOptionError(f"{id} has no argument {name!r}; {takes}")
        default = known[name].default
        if isinstance(default, bool) and not isinstance(value, bool):
            raise InvalidOptionError(f"{id}: {name} must be true or false, got {value!r}")
        if isinstance(default, int | float) and isinstance(value, str):
            raise InvalidOptionError(f"{id}: {name} must be a number, got {value!r}")
