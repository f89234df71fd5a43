"""The parts of a compiled run, taken from the builder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax

from ... import environments
from ...agents.builder import Builder
from ...agents.programs.whole_loop import WholeLoop
from ...agents.replay.device import DeviceReplay
from ...agents.replay.shapes import sample_shapes
from ...environments.functional import FunctionalVector
from .. import devices
from ..errors import RequestError
from ..experiment import Experiment
from ..factory import ComponentFactory
from ..local.components import Components
from ..validation import updates
from .evaluator import CompiledEvaluator
from .views import CompiledActor, CompiledLearner, CompiledReplay, RunningProgram

if TYPE_CHECKING:
    from ...environments import Vector

_OTHERS = "take --launch one-process, threads, processes or ray"
_OVERRIDDEN = (
    "make_replay_tables",
    "make_adder",
    "make_dataset_iterator",
    "make_actor",
    "make_learner",
)
"""Methods of a builder that make what a program cannot hold, where they are not the base's."""


def make(experiment: Experiment, environment: Vector) -> Components:
    """All parts of a run whose loop is one program.

    Args:
      experiment: what is run.
      environment: of training; its functions and its keys are taken into the program.

    Raises:
      RequestError: if something of it cannot be compiled, naming it and the launches that can.
    """
    vector = require_compilable(experiment, environment)
    builder, num_envs = experiment.builder, environment.num_envs
    spec = environments.make_spec(environment)
    factory = ComponentFactory(experiment, spec, num_envs)
    replay_spec = builder.make_replay_spec(spec)
    extras_spec = builder.make_extras_spec(factory.policy)
    updates.check(factory, factory.networks, sample_shapes(replay_spec, spec, extras_spec))
    device = devices.named(experiment.learner_device, "learner") or jax.local_devices()[0]
    steps = builder.steps_per_dispatch
    replay = DeviceReplay(replay_spec, spec, extras_spec, num_envs=num_envs, steps_per_sample=steps)
    _require_room(replay.num_bytes, device)
    update = builder.make_update(factory.networks, spec)
    loop = WholeLoop(vector.functions, factory.policy, update, replay, steps, device)
    for name in loop.host_callers(num_envs):
        raise RequestError(
            f"{name} calls the host (a print or a callback), for which no program of many steps "
            f"waits; {_OTHERS}."
        )
    running = RunningProgram(
        loop, loop.init(vector.keys, factory.key("actor"), factory.key("learner"))
    )
    names = jax.eval_shape(lambda: update.variables(running.state.learning.state))
    learner: Any = CompiledLearner(running, tuple(names))
    view: Any = CompiledReplay(running, replay)
    actor = CompiledActor(running, factory.policy.set_num_actions)
    evaluator = CompiledEvaluator(experiment, spec, factory.networks, learner, device)
    chosen = devices.ChosenDevices(device, device)
    return Components(spec, environment, view, learner, actor, evaluator, chosen)


def require_compilable(experiment: Experiment, environment: Vector) -> FunctionalVector:
    """Returns the environments, which are written in JAX.

    Raises:
      RequestError: if they are not, or the builder makes parts of its own.
    """
    builder = experiment.builder
    if not experiment.acts:
        raise RequestError(
            f"--launch compiled is of agents that act, and {builder.name} learns from data; "
            "take --launch one-process."
        )
    if not isinstance(environment, FunctionalVector):
        raise RequestError(
            f"{experiment.env} is not written in JAX, so that no program can hold it; {_OTHERS}, "
            f"or an environment whose id begins with jax: (see docs/compiled.md)."
        )
    if experiment.partition is not None:
        raise RequestError(
            "--launch compiled runs on one device; leave out --mesh and --schedule, or take "
            "--launch one-process."
        )
    for name in _OVERRIDDEN:
        if getattr(type(builder), name) is not getattr(Builder, name):
            raise RequestError(
                f"{builder.name} has a {name} of its own, which no program can hold; {_OTHERS}."
            )
    return environment


def _require_room(num_bytes: int, device: jax.Device) -> None:
    """Raises RequestError where the replay does not fit the device's memory."""
    limit = _memory(device)
    if limit is not None and num_bytes > limit:
        raise RequestError(
            f"the replay takes {num_bytes / 2**30:.1f} GiB of the device's memory, and "
            f"{device.device_kind} has {limit / 2**30:.1f} GiB; choose a smaller replay "
            "(--config.max_replay_size)."
        )


def _memory(device: jax.Device) -> int | None:
    """Returns the bytes that a device has for us; None: it does not say."""
    if device.platform == "cpu":  # A tenth is left to all else that runs there.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 9 // 10
    return (device.memory_stats() or {}).get("bytes_limit")
