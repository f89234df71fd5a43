"""Chooses the devices that an actor and a learner compute on: by name, or by trying them.

An accelerator is not always quicker: an action is a round trip to it, and small updates take less
time on the host. With `auto` the real policy and the real update run for a moment on each device
there is, and the quickest pair is kept.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..agents.networks.core import dummy
from ..agents.programs.placement import Partition
from ..agents.replay.items import ReplaySpec, Rollouts
from .errors import RequestError

if TYPE_CHECKING:
    from .experiment import Experiment
    from .factory import ComponentFactory

AUTO, MESH = "auto", "mesh"
_SECONDS = 0.3
_CALLS = 20


class ChosenDevices(NamedTuple):
    """The devices of one process; None: jax's default device."""

    actor: jax.Device | Partition | None = None
    learner: jax.Device | None = None
    note: str = ""
    """A line that says what was tried; empty: there was no choice."""

    def to_json(self) -> dict[str, str]:
        """The platform of each."""
        default = jax.local_devices()[0]
        actor = self.actor.mesh.devices()[0] if isinstance(self.actor, Partition) else self.actor
        return {
            "actor": (actor or default).platform,
            "learner": (self.learner or default).platform,
        }


def find(name: str, who: str) -> dict[str, jax.Device]:
    """The devices of this process that go by a name, by platform; jax's default one first.

    Args:
      name: auto, cpu, gpu or tpu.
      who: "actor" or "learner", for messages.

    Raises:
      RequestError: if there is none.
    """
    if name == AUTO:
        first = jax.local_devices()[0]
        found = {first.platform: first}
        if first.platform != "cpu" and (host := _local("cpu")) is not None:
            found["cpu"] = host
        return found
    device = _local(name)
    if device is None:
        raise RequestError(
            f"the {who}'s device is {name}, and jax finds only "
            f"{jax.local_devices()[0].device_kind} here; leave out --{who}-device {name}, or "
            f"install jax for a {name} where there is one."
        )
    return {device.platform: device}


def named(name: str, who: str) -> jax.Device | None:
    """The device of a name, of a role that tries none; None: jax's default.

    Raises:
      RequestError: if this process has none.
    """
    if name == MESH:
        raise RequestError(
            f"the {who}'s device is mesh, that of a learner in the same process; launch in one "
            "process, or have inference servers with --inference-mesh and --inference-schedule."
        )
    return None if name == AUTO else _explicit(find(name, who))


def has_accelerator() -> bool:
    """True if this machine shows an accelerator; touches none."""
    devices = pathlib.Path("/dev")
    patterns = ("nvidia[0-9]*", "kfd", "dxg", "accel[0-9]*", "vfio/[0-9]*")
    return any(next(devices.glob(pattern), None) is not None for pattern in patterns)


def require_accelerator(name: str) -> None:
    """Raises RequestError where the learner is to have an accelerator and this machine has none."""
    if name not in (AUTO, "cpu") and not has_accelerator():
        raise RequestError(
            f"the learner's device is {name}, and this machine has none; leave out "
            f"--learner-device {name}, or install jax for a {name} where there is one."
        )


def choose(
    factory: ComponentFactory, samples: Any = None, spec: ReplaySpec | None = None
) -> ChosenDevices:
    """The devices on which the actor and the learner of one process are quickest together.

    Args:
      factory: of the components that are tried.
      samples: shapes of the batches of a dispatch [K, B, ...]; None: there is no learner here.
      spec: of the replay, whose pace says how often the learner steps; None: nobody acts.

    Raises:
      RequestError: if there is no device of a name, or none on which they run.
    """
    experiment = factory.experiment
    sampler = _sampler(experiment)
    acts = spec is not None and experiment.actor_device != MESH and sampler is None
    actors = find(experiment.actor_device, "actor") if acts else {}
    learners = find(experiment.learner_device, "learner") if samples is not None else {}
    if experiment.partition is not None:
        learners = {}  # It is where its mesh is.
    if len(actors) <= 1 and len(learners) <= 1:
        return ChosenDevices(sampler or _explicit(actors), _explicit(learners))
    learning = _measure(learners, lambda device: _dispatch_of(factory, samples, device))
    acting = _measure(actors, lambda device: _action_of(factory, device))
    rate = 1.0 if spec is None else _dispatches_per_step(spec, factory)
    pairs = itertools.product(acting or {"": 0.0}, learning or {"": 0.0})
    actor, learner = min(
        pairs, key=lambda pair: acting.get(pair[0], 0.0) + rate * learning.get(pair[1], 0.0)
    )
    told = [
        f"{who} on {name} ({_told(times, name, what)})"
        for who, name, times, what in (
            ("actor", actor, acting, "an action"),
            ("learner", learner, learning, "a dispatch"),
        )
        if len(times) > 1
    ]
    note = "devices: " + ", ".join(told)
    return ChosenDevices(sampler or actors.get(actor), learners.get(learner), note)


def _sampler(experiment: Experiment) -> jax.Device | Partition | None:
    """The devices of the policy's own mesh, or the only one; None: it has no such mesh.

    They are those besides the learner's where jax has enough, else the first there are.

    Raises:
      RequestError: if jax has fewer.
    """
    partition, learner = experiment.sampler_partition, experiment.partition
    if partition is None:
        return None
    mesh, taken = partition.mesh, 1 if learner is None else learner.mesh.size
    try:
        if len(jax.devices()) >= taken + mesh.size:
            mesh = mesh.on(jax.devices()[taken : taken + mesh.size])
        devices = mesh.devices()
    except ValueError as error:
        raise RequestError(f"--sampler-mesh: {error}.") from error
    return devices[0] if mesh.size == 1 else dataclasses.replace(partition, mesh=mesh)


def _explicit(found: dict[str, jax.Device]) -> jax.Device | None:
    """The only device found, where it is not jax's default."""
    device = next(iter(found.values()), None)
    return None if device is None or device == jax.local_devices()[0] else device


def _local(platform: str) -> jax.Device | None:
    try:
        return jax.local_devices(backend=platform)[0]
    except RuntimeError:
        return None


def _measure(
    devices: dict[str, jax.Device], make: Callable[[jax.Device], Callable[[], Any]]
) -> dict[str, float]:
    """Seconds of a call on each device on which it runs.

    Raises:
      RequestError: if it runs on none.
    """
    found: dict[str, float] = {}
    failures = []
    for name, device in devices.items():
        try:
            found[name] = _seconds(make(device))
        except jax.errors.JaxRuntimeError as error:  # It may be too large for one of them.
            failures.append(f"{name}: {str(error).splitlines()[0]}")
    if devices and not found:
        raise RequestError(f"neither runs on a device there is ({'; '.join(failures)}).")
    return found


def _seconds(call: Callable[[], Any]) -> float:
    """The median of some calls, after two that compile."""
    call(), call()
    times: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(times) < 3 or (len(times) < _CALLS and time.perf_counter() < until):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _dispatch_of(factory: ComponentFactory, samples: Any, device: jax.Device) -> Callable[[], None]:
    """Returns a call that takes one dispatch of the learner and waits for it."""
    batch = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), samples)
    learner = factory.trial_learner(itertools.repeat(batch), device)

    def call() -> None:
        learner.step()
        learner.metrics()  # Which waits for the device.

    return call


def _action_of(factory: ComponentFactory, device: jax.Device) -> Callable[[], None]:
    """A choice of actions for the environments that step together."""
    num_envs = factory.builder.num_envs
    observation = jax.tree.map(np.asarray, dummy(factory.spec.observations, num_envs))
    actor = factory.trial_actor(device)
    return lambda: actor.select_action(observation)


def _dispatches_per_step(spec: ReplaySpec, factory: ComponentFactory) -> float:
    """Dispatches of the learner for each step of all environments."""
    builder = factory.builder
    rows = builder.steps_per_dispatch * spec.batch_size
    if isinstance(spec.item, Rollouts):
        return builder.num_envs / (rows * spec.item.length)
    if spec.samples_per_insert is None:
        return 1.0
    return builder.num_envs * spec.samples_per_insert / rows


def _told(times: dict[str, float], name: str, what: str) -> str:
    others = ", ".join(f"{one} {times[one] * 1e3:.3g}" for one in times if one != name)
    return f"{times[name] * 1e3:.3g} ms {what}; {others}"
