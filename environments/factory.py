"""Environments by their ids."""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any, overload

import dm_env
import gymnasium

from . import (
    atari,
    batched,
    external,
    fakes,
    multiagent,
    options,
    registry,
    rendering,
    suites,
    text,
)
from .dm_adapter import Conform
from .errors import EnvironmentExitError, InvalidOptionError, UnknownEnvironmentError
from .gymnasium_adapter import GymnasiumEnvironment
from .seeding import check_seed, derive_seed
from .spaces import ActionMode
from .stacking import StackFrames
from .vector import Vector

MOST_ENVIRONMENTS = 1 << 20
"""In one vector, which steps them one after another."""


@overload
def make(
    id: str,
    *,
    seed: int,
    num_envs: None = None,
    actions: ActionMode = "strict",
    reward_clip: float | None = None,
    episodic_life: bool = False,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **arguments: Any,
) -> dm_env.Environment: ...


@overload
def make(
    id: str,
    *,
    seed: int,
    num_envs: int,
    actions: ActionMode = "strict",
    reward_clip: float | None = None,
    episodic_life: bool = False,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **arguments: Any,
) -> Vector: ...


def make(
    id: str,
    *,
    seed: int,
    num_envs: int | None = None,
    actions: ActionMode = "strict",
    reward_clip: float | None = None,
    episodic_life: bool = False,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **arguments: Any,
) -> dm_env.Environment | Vector:
    """Makes an environment, or a vector of them.

    The ids are those of Gymnasium ("CartPole-v1", "HalfCheetah-v5"), "ALE/GAME-v5" for Atari games
    with the standard preprocessing and a stack of four frames (uint8 [84, 84, 4]),
    "MinAtar/GAME-v1" for games of 10 x 10 pixels, "dm_control/DOMAIN-TASK",
    "bsuite/EXPERIMENT/INDEX", and "fake/NAME" for one of `fakes.FAKES`.
    "MODULE:ID" imports the module first, which registers the id. "jax:NAME" is one of
    `functional.TASKS`, written in JAX, and "jax:MODULE:NAME" what a function of a module makes.
    "pettingzoo:FAMILY/NAME" is one of PettingZoo's parallel environments of several agents, and
    "pettingzoo:MODULE:FUNCTION" what a function of a module makes. "external:HOST:PORT" is a
    simulator that is served there (see `external.client`). "tokens:NAME" is one of
    `text.TASKS`, whose actions are answers to a prompt, and "tokens:MODULE:FUNCTION" what a
    function of a module makes.

    Args:
      id: which environment.
      seed: at least 0; every random event follows from it. Environment i of a vector has
        `derive_seed(seed, i)`: the first is the one that `num_envs=None` makes.
      num_envs: None for a `dm_env.Environment`, a number of at least 1 for a `Vector`. Each of
        several agents counts as one, and environments are whole: there may be more of them.
      actions: what becomes of actions in a Box: "strict" refuses those outside of the bounds,
        "clip" moves them onto the bounds, "rescale" lets the agent act in [-1, 1].
      reward_clip: rewards are clipped to +- this; None leaves them as they are.
      episodic_life: in Atari games, whether the loss of a life terminates an episode. For
        training; evaluate without it.
      max_episode_steps: in place of the limit that the id comes with (Gymnasium), or beside it
        (PettingZoo).
      render_mode: "rgb_array" makes `render_frame` work, "human" shows a window (Gymnasium only).
      **arguments: for the environment's own constructor (Gymnasium, fakes, PettingZoo and tasks of
        text), and for `multiagent.ParallelEnvironment` or `text.TextEnvironment`.

    Raises:
      UnknownEnvironmentError: if there is no such id; the message lists near ones.
      MissingExtraError: if a package that it needs is not installed; the message says which
        extra has it.
      InvalidOptionError: if an argument has a value that it cannot have.
      UnsupportedSpaceError: if the environment's observations or actions have no spec.
      EnvironmentExitError: if the environment called `sys.exit`.
    """
    seed = check_seed(seed)
    if not isinstance(id, str):
        raise UnknownEnvironmentError(f"an environment's id is a text, got {id!r}")
    num_envs = options.optional_integer("num_envs", num_envs, 1, MOST_ENVIRONMENTS)
    options.optional_integer("max_episode_steps", max_episode_steps, 1, 10**12)
    options.choice("render_mode", render_mode, (None, "rgb_array", "human"))
    options.choice("episodic_life", episodic_life, (True, False))
    common: dict[str, Any] = {
        "actions": actions,
        "reward_clip": reward_clip,
        "render_mode": render_mode,
    }
    more = {"max_episode_steps": max_episode_steps, **arguments}

    if id.startswith("jax:"):
        _refuse(id, episodic_life=episodic_life, render_mode=render_mode)
        return _functional(id, seed, num_envs, actions=actions, reward_clip=reward_clip, **more)
    if id.startswith(multiagent.PREFIX):
        _refuse(id, episodic_life=episodic_life)
        try:
            return multiagent.make(id, seed, num_envs, **common, **more)
        except SystemExit as end:
            raise EnvironmentExitError(f"{id} called sys.exit({end.code!r})") from end
    if id.startswith(text.PREFIX):
        limits = {"render_mode": render_mode, "max_episode_steps": max_episode_steps}
        _refuse(id, episodic_life=episodic_life, **limits)
        return text.make(id, seed, num_envs, reward_clip=reward_clip, **arguments)
    if id.startswith(external.PREFIX):
        _refuse(id, episodic_life=episodic_life, render_mode=render_mode)
        common.pop("render_mode")
        return external.make(id, seed, num_envs, **common, **more)
    family = id.partition("/")[0]

    def make_one(index: int) -> dm_env.Environment:
        one_seed = derive_seed(seed, index)
        if family == "fake":
            _refuse(id, episodic_life=episodic_life, max_episode_steps=max_episode_steps)
            return _fake(id, one_seed, arguments, **common)
        if family in ("dm_control", "bsuite"):
            _refuse(id, episodic_life=episodic_life, **more)
            if render_mode == "human":
                raise InvalidOptionError(f"{id} has no window: film it with render_mode rgb_array")
            return getattr(suites, family)(id, seed=one_seed, **common)
        return _gymnasium(id, one_seed, episodic_life, **common, **more)

    try:
        first = make_one(0)
        if num_envs is None:
            return first
        found = batched.make(first, [derive_seed(seed, index) for index in range(num_envs)])
        return found or Vector([first, *(make_one(index) for index in range(1, num_envs))])
    except SystemExit as end:
        raise EnvironmentExitError(f"{id} called sys.exit({end.code!r})") from end


def _refuse(id: str, **options: Any) -> None:
    """Raises `InvalidOptionError` where an option was given that this kind of id cannot have."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise InvalidOptionError(f"{id} takes no {', '.join(given)}")


def _functional(
    id: str, seed: int, num_envs: int | None, *, reward_clip: float | None, **options: Any
) -> dm_env.Environment | Vector:
    """An environment written in JAX, or a vector of them in one program."""
    from . import functional  # Only who has one pays for jax.

    environment = functional.make(id, reward_clip=reward_clip, **options)
    if num_envs is None:
        return functional.HostedEnvironment(environment, id, seed, reward_clip)
    seeds = [derive_seed(seed, index) for index in range(num_envs)]
    return functional.FunctionalVector(environment, id, seeds, reward_clip)


def _fake(
    id: str,
    seed: int,
    arguments: dict[str, Any],
    *,
    actions: ActionMode,
    reward_clip: float | None,
    render_mode: str | None,
) -> dm_env.Environment:
    """One of `fakes.FAKES`; it takes the options of every environment, and its own."""
    registry.check_known(id, [f"fake/{name}" for name in fakes.FAKES])
    _refuse(id, render_mode=render_mode)
    constructor = fakes.FAKES[id.removeprefix("fake/")]
    registry.check_arguments(id, fakes.parameters(constructor), arguments)
    try:
        environment = constructor(seed=seed, **arguments)
    except TypeError as error:
        raise InvalidOptionError(f"{id}: {error}") from error
    return Conform(environment, name=id, actions=actions, reward_clip=reward_clip)


def _gymnasium(
    id: str,
    seed: int,
    episodic_life: bool,
    *,
    actions: ActionMode,
    reward_clip: float | None,
    render_mode: str | None,
    max_episode_steps: int | None,
    **arguments: Any,
) -> dm_env.Environment:
    """An environment of Gymnasium's registry."""
    specification = _specification(id)
    is_atari = registry.extra_of(specification) == "atari"
    if episodic_life and not is_atari:
        raise InvalidOptionError(f"episodic_life is for Atari games, which {id} is not")
    if is_atari:
        registry.import_extra("cv2", "atari", id)
        _refuse(id, **{name: arguments.get(name) for name in atari.ARGUMENTS})
        arguments.update(atari.ARGUMENTS)
    environment = _build(specification, render_mode, arguments)
    if is_atari:
        environment = atari.preprocess(environment, episodic_life=episodic_life)
    limit = specification.max_episode_steps if max_episode_steps is None else max_episode_steps
    adapted = GymnasiumEnvironment(
        environment,
        seed=seed,
        actions=actions,
        reward_clip=reward_clip,
        max_episode_steps=limit,
        name=id,
    )
    return StackFrames(adapted, atari.STACK) if is_atari else adapted


def _specification(id: str) -> gymnasium.envs.registration.EnvSpec:
    """The registered description of `id`, changed so that no wrapper is put around it."""
    module, _, name = id.rpartition(":")
    if module == "gym":  # The package that Gymnasium has followed.
        registry.check_known(id, registry.registered_ids())
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:  # It may have mistakes of any kind.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UnknownEnvironmentError(
                f"unknown environment {id!r}; its module cannot be imported: {reason}"
            ) from error
    registry.register_family(name)
    if name not in gymnasium.registry:
        registry.check_known(name, registry.registered_ids())
    specification = copy.deepcopy(gymnasium.registry[name])
    # The adapter keeps the order of calls itself, in less time.
    specification.order_enforce = False
    return specification


def _build(
    specification: gymnasium.envs.registration.EnvSpec,
    render_mode: str | None,
    arguments: dict[str, Any],
) -> gymnasium.Env:
    extra = registry.extra_of(specification)
    if extra == "mujoco":
        rendering.log_mujoco()
        if render_mode is not None:
            rendering.prepare_mujoco()
    if extra == "box2d":
        _import_box2d(specification.id)
    if render_mode is not None:
        arguments = {**arguments, "render_mode": render_mode}
    try:
        registry.check_arguments(specification.id, registry.parameters(specification), arguments)
        # The adapter counts the steps to the time limit as well: hence no wrapper for it.
        return gymnasium.make(
            specification, max_episode_steps=-1, disable_env_checker=True, **arguments
        )
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise registry.missing_extra(specification.id, extra, error) from error
    except InvalidOptionError:
        raise
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        newer = registry.newer_version(specification.id)
        raise InvalidOptionError(f"{specification.id}: {reason.rstrip('.')}{newer}") from error
    except Exception as error:  # What a constructor says of an argument that it cannot take.
        if not arguments:
            raise
        raise registry.invalid_arguments(specification.id, arguments, error) from error


def _import_box2d(id: str) -> None:
    """Imports Box2D, whose generated bindings crash where their own warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        registry.import_extra("Box2D", "box2d", id)
