"""Tables of agents, wrappers and environments that go together, asked of the package itself."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

from troupe import environments
from troupe.agents import AGENTS, Builder, find_builder
from troupe.agents.catalogue import driving
from troupe.agents.wrappers.composition import WRAPPERS
from troupe.environments import EnvironmentSpec

Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete

ANSWERS = "answers of tokens"

ENVIRONMENTS = (
    ("CartPole-v1", ""),
    ("CartPoleMasked-v1", ""),
    ("Pendulum-v1", ""),
    ("Taxi-v4", ""),
    ("LunarLander-v3", "box2d"),
    ("HalfCheetah-v5", "mujoco"),
    ("ALE/Pong-v5", "atari"),
    ("MinAtar/Breakout-v1", "minatar"),
    ("bsuite/catch/0", "bsuite"),
    ("jax:CartPole-v1", ""),
    ("jax:Pendulum-v1", ""),
    ("jax:Nim-v0", ""),
    ("jax:pgx/minatar-breakout", "pgx"),
    ("jax:brax/halfcheetah", "brax"),
    ("tokens:addition", ""),
)
"""One id of each kind, and its extra. One whose package is missing is left out."""


class _Spaces(gymnasium.Env):  # type: ignore[type-arg]
    """Has given spaces, and is never stepped."""

    def __init__(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]):
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}


_VECTOR = Box(-1.0, 1.0, (3,), np.float32)
ACTIONS: dict[str, Callable[[], EnvironmentSpec]] = {
    "Discrete": lambda: _spec_of(Discrete(3)),
    "Discrete with a mask": lambda: environments.make_spec(
        environments.make("fake/match", seed=0, masked=True)
    ),
    "Box": lambda: _spec_of(_VECTOR),
    "MultiDiscrete": lambda: _spec_of(gymnasium.spaces.MultiDiscrete([3, 2])),
    "Dict": lambda: _spec_of(gymnasium.spaces.Dict(push=Discrete(3), turn=_VECTOR)),
    ANSWERS: lambda: environments.make_spec(environments.make("tokens:reverse", seed=0)),
}
"""Spaces of actions, each with the specs of an environment that has them."""


def _spec_of(actions: gymnasium.Space[Any]) -> EnvironmentSpec:
    env = _Spaces(_VECTOR, actions)
    return environments.make_spec(environments.GymnasiumEnvironment(env, seed=0))


@functools.cache
def drives(agent: str) -> tuple[str, ...]:
    """Returns the spaces of `ACTIONS` that an agent drives with its default settings."""
    builder, found = find_builder(agent)(), []
    for kind, make in ACTIONS.items():
        try:
            spec = make()
            builder.require_masks_honoured(spec)
            builder.make_networks(spec)
        except (ValueError, TypeError):
            continue
        found.append(kind)
    return tuple(found)


@functools.cache
def wrapped_by(agent: str) -> tuple[str, ...]:
    """Returns the wrappers that may stand before an agent, with a config that allows them."""
    if drives(agent) == (ANSWERS,):  # Wrappers are of rewards and observations, not of scores.
        return ()
    return tuple(name for name in sorted(WRAPPERS) if _composes(name, find_builder(agent)))


def _composes(wrapper: str, agent: type[Builder[Any, Any]]) -> bool:
    composed = find_builder(f"{wrapper}+{agent.name}")
    if composed.mixes_data and agent.needs_data:
        return False  # It has data alone already.
    fields = composed.config_class.__dataclass_fields__
    config = composed.config_class(**({"n_step": 1} if "n_step" in fields else {}))
    spec = ACTIONS[drives(agent.name)[0]]()
    try:
        composed(config).make_replay_spec(spec)
    except ValueError:
        return False
    return True


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    names = list(header)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def linked(text: str) -> str:
    """A text whose addresses are links, named by the site that they are of."""

    def link(match: re.Match[str]) -> str:
        site, path = match.group(1), match.group(2)
        is_paper = site == "arxiv.org" and path.startswith("/abs/")
        name = f"arXiv:{path.removeprefix('/abs/')}" if is_paper else site
        return f"[{name}]({match.group()})"

    return re.sub(r"https?://(?:www\.)?([^\s/),;]+)([^\s),;]*[^\s),;.])", link, text)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def pages() -> Iterator[tuple[str, str]]:
    """Yields the page of agents against actions and wrappers, and of environments."""
    agents = sorted(AGENTS)
    links = [f"[`{name}`](agents/{name}.md)" for name in agents]
    text = "# Environments, actions and wrappers\n\n"
    text += "This page was made by asking each agent, with its default settings.\n\n"
    text += "## Which agents take which actions\n\n"
    text += (
        "Every agent takes observations that are vectors, images, and dicts or tuples of both; one "
    )
    text += "of answers takes prompts. "
    text += "A space is Gymnasium's, or what says the same in dm_env or JAX.\n\n"
    text += table(
        ["agent", *ACTIONS],
        (
            [link, *(_mark(kind in drives(name)) for kind in ACTIONS)]
            for name, link in zip(agents, links, strict=True)
        ),
    )
    text += "\n## Which wrappers stand before which agents\n\n"
    text += "[Wrappers](agents.md#wrappers) says what they do. "
    text += "`gail` needs an agent whose items are single steps (`--config.n_step 1`).\n\n"
    text += table(
        ["agent", *(f"`{name}+`" for name in sorted(WRAPPERS))],
        (
            [link, *(_mark(one in wrapped_by(name)) for one in sorted(WRAPPERS))]
            for name, link in zip(agents, links, strict=True)
        ),
    )
    text += "\n## What environments give and take\n\n"
    text += "One id of each kind. [Environments](environments.md) lists them all, "
    text += "and says how to add your own. Those in JAX also run with `--launch compiled`.\n\n"
    header = ["environment", "extra", "observation", "action", "agents"]
    yield "matrix.md", text + table(header, _environments())


def _environments() -> Iterator[list[str]]:
    for name, extra in ENVIRONMENTS:
        try:
            environment = environments.make(name, seed=0)
        except environments.MissingExtraError as error:
            print(f"{name} is left out: {error}")
            continue
        spec = environments.make_spec(environment)
        environment.close()
        agents = ", ".join(driving(spec))
        yield [f"`{name}`", extra and f"`{extra}`", *map(_shape, spec[:2]), agents]


def _mark(holds: bool) -> str:
    return "yes" if holds else ""


def _shape(spec: Any) -> str:
    """Describes a spec in a few words."""
    if isinstance(spec, dict):
        return ", ".join(f"`{name}`: {_shape(one)}" for name, one in spec.items())
    if hasattr(spec, "num_values"):
        return f"one of {spec.num_values}"
    if isinstance(spec, environments.AnswerArray):
        return environments.specs.describe(spec)
    return f"{spec.dtype} {[*spec.shape]}"
