"""Writes the reference of the public names, with pdoc: `python -W error docs/reference.py DIR`."""

import contextlib
import importlib
import pathlib
import sys
import types
import typing

import pdoc

MODULES = (
    "troupe.environments",
    "troupe.environments.action_masks",
    "troupe.partitioning",
    "troupe.launch",
    "troupe.agents",
    "troupe.agents.configs",
    "troupe.agents.replay",
    "troupe.agents.acting.policies",
    "troupe.agents.learning.descent",
    "troupe.agents.learning.normalization",
    "troupe.agents.learning.optimizers",
    "troupe.agents.learning.prioritisation",
    "troupe.agents.learning.schedules",
    "troupe.agents.learning.targets",
    "troupe.agents.action_spaces",
    "troupe.agents.legal_actions",
    "troupe.agents.losses.distributional",
    "troupe.agents.losses.estimates",
    "troupe.agents.losses.actor_critic",
    "troupe.agents.losses.masks",
    "troupe.agents.losses.mpo",
    "troupe.agents.losses.policy",
    "troupe.agents.losses.priorities",
    "troupe.agents.losses.returns",
    "troupe.agents.losses.values",
    "troupe.agents.networks.assembly",
    "troupe.agents.networks.core",
    "troupe.agents.networks.critics",
    "troupe.agents.networks.distributions",
    "troupe.agents.networks.heads",
    "troupe.agents.networks.noisy",
    "troupe.agents.networks.policies",
    "troupe.agents.networks.recurrent",
    "troupe.agents.networks.torsos",
    "troupe.agents.networks.transformer",
    "troupe.agents.wrappers.demonstrations",
    "troupe.agents.wrappers.gail",
    "troupe.agents.wrappers.normalized",
    "troupe.agents.wrappers.rnd",
    "troupe.agents.wrappers.sqil",
    "troupe.agents.wrappers.wrapper",
    "troupe.agents.bc",
    "troupe.agents.cql",
    "troupe.agents.crr",
    "troupe.agents.d4pg",
    "troupe.agents.dqn",
    "troupe.agents.impala",
    "troupe.agents.iql",
    "troupe.agents.mpo",
    "troupe.agents.muzero",
    "troupe.agents.ppo",
    "troupe.agents.r2d2",
    "troupe.agents.sac",
    "troupe.agents.td3",
)
"""Those whose names users write. A face has the names of its `__all__`,
modules among them."""


def load(face: types.ModuleType) -> None:
    """Loads what a face loads on first use, and leaves out what needs a package that is missing."""
    for public in [*getattr(face, "__all__", ())]:
        try:
            vars(face)[public] = getattr(face, public)
        except ModuleNotFoundError as error:  # Of Launchpad, where it is not installed.
            face.__all__.remove(public)
            print(f"{face.__name__}.{public} is left out: {error}")


def make_ready() -> None:
    """Loads what faces load on first use, and resolves what pdoc cannot.

    pdoc looks for names in a module's dictionary, and for the annotations of a named tuple in a
    module that there is not.
    """
    for name in MODULES:
        load(importlib.import_module(name))  # Before pdoc looks for submodules among the names.
    for name in pdoc.extract.walk_specs(MODULES):
        load(importlib.import_module(name))
    for name, module in [*sys.modules.items()]:
        if name.startswith("troupe."):
            for value in [*vars(module).values()]:
                if isinstance(value, type) and hasattr(value, "_field_defaults"):
                    # Those that nobody sees may name what is there for type checkers alone.
                    with contextlib.suppress(NameError):
                        value.__new__.__annotations__ = typing.get_type_hints(value)


def main(folder: str) -> None:
    """Writes the pages into a folder."""
    make_ready()
    pdoc.render.configure(docformat="google")
    pdoc.pdoc(*MODULES, output_directory=pathlib.Path(folder))
    print(pathlib.Path(folder, "index.html"))


if __name__ == "__main__":
    main(*sys.argv[1:])
