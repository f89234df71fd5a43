"""Environments that are dm_env environments from the start: dm_control and bsuite.

Their ids are "dm_control/DOMAIN-TASK" and "bsuite/EXPERIMENT/INDEX".
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np

from . import registry, rendering, spaces
from .dm_adapter import Conform
from .errors import InvalidOptionError


def dm_control(
    id: str,
    *,
    seed: int,
    actions: spaces.ActionMode,
    reward_clip: float | None,
    render_mode: str | None,
) -> Conform:
    """The task of the DeepMind Control Suite that `id` names.

    Tassa et al. 2018, https://arxiv.org/abs/1801.00690. Observations are dicts of float32 arrays.
    """
    rendering.prepare_mujoco()
    suite = registry.import_extra("dm_control.suite", "dm_control", id)
    known = [f"dm_control/{domain}-{task}" for domain, task in suite.ALL_TASKS]
    registry.check_known(id, known)
    domain, _, task = id.removeprefix("dm_control/").partition("-")
    # From a generator, because RandomState(seed) takes no seed above 2**32.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    environment = suite.load(domain, task, task_kwargs={"random": random})
    render = None
    if render_mode is not None:
        render = functools.partial(environment.physics.render, height=240, width=320, camera_id=0)
    return Conform(environment, name=id, actions=actions, reward_clip=reward_clip, render=render)


def bsuite(
    id: str,
    *,
    seed: int,
    actions: spaces.ActionMode,
    reward_clip: float | None,
    render_mode: str | None,
) -> Conform:
    """The experiment of the Behaviour Suite that `id` names, with the settings of its index.

    Osband et al. 2020, https://arxiv.org/abs/1908.03568. The `mapping_seed` of a setting is part of
    the problem and stays; the seed of its chance events is ours, where it has one.
    """
    if render_mode is not None:
        raise InvalidOptionError(f"{id}: bsuite renders no images, leave render_mode out")
    sweep = registry.import_extra("bsuite.sweep", "bsuite", id)
    loader = registry.import_extra("bsuite.bsuite", "bsuite", id)
    registry.check_known(id, [f"bsuite/{name}" for name in sweep.SWEEP])
    setting = id.removeprefix("bsuite/")
    experiment = setting.partition("/")[0]
    arguments: dict[str, Any] = dict(sweep.SETTINGS[setting])
    if "seed" in inspect.signature(loader.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]).parameters:
        arguments["seed"] = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return Conform(
        loader.load(experiment, arguments), name=id, actions=actions, reward_clip=reward_clip
    )
