"""The processes of a learner: how many devices each has, and how it is supervised."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

from ....agents.programs import runtime
from ...devices import has_accelerator
from ...errors import RequestError
from ..supervision.role import Settings

if TYPE_CHECKING:
    from ....environments import EnvironmentSpec
    from ...experiment import Experiment
    from ...roles import Roles

# A step may take long to compile; a stopped process is noticed all the same.
_HANG_SECONDS = 600.0
# Sooner than the others of a gang give a silent one up, so that its name is the one that is told.
_STOPPED_SECONDS = 5.0


def settings(experiment: Experiment, spec: EnvironmentSpec, roles: Roles) -> list[Settings]:
    """Returns the settings of each process of the learner, by rank.

    Raises:
      RequestError: if the batch, the mesh or the accelerators cannot be shared out equally, the
        mesh has more devices than there are GPUs.
    """
    hosts, on_device = roles.learner_hosts, sees_accelerator(experiment, roles)
    common: dict[str, Any] = {
        "reverb": experiment.acts,
        "hang_seconds": _HANG_SECONDS,
        "start_seconds": _HANG_SECONDS,
    }
    if hosts == 1 and experiment.partition is None:
        return [Settings(accelerator=on_device, **common)]
    _check_batch(experiment, spec, hosts)
    if hosts > 1:
        common |= {"gang": "learner", "stopped_seconds": _STOPPED_SECONDS}
    if roles.learner_gpus is not None:
        _check_mesh(experiment, hosts * roles.learner_gpus)
        environments: list[tuple[tuple[str, str], ...]] = [()] * hosts  # Ray gives each its own.
    elif on_device:
        environments = _accelerators(experiment, hosts)
    else:
        environments = [_processors(experiment, spec, hosts)] * hosts
    return [Settings(environment=one, accelerator=on_device, **common) for one in environments]


def devices(experiment: Experiment, roles: Roles) -> runtime.Devices:
    """Describes the devices that the learner's processes will have; touches none."""
    name = experiment.learner_device
    platform = "gpu" if name == "auto" else name
    if not sees_accelerator(experiment, roles):
        platform = "cpu"
    hosts, partition = roles.learner_hosts, experiment.partition
    each = 1 if partition is None else max(partition.mesh.size // hosts, 1)
    return runtime.elsewhere(platform, each, hosts)


def sees_accelerator(experiment: Experiment, roles: Roles) -> bool:
    """True if the learner and the inference servers may use an accelerator.

    By default they may where there is one; those of several processes or of a mesh where the
    processes can share this machine's equally.
    """
    if experiment.learner_device != "auto" or roles.learner_gpus is not None:
        return experiment.learner_device != "cpu"
    if not has_accelerator():
        return False
    if roles.learner_hosts == 1 and experiment.partition is None:
        return True
    try:
        _accelerators(experiment, roles.learner_hosts)
    except RequestError:
        return False
    return True


def _check_batch(experiment: Experiment, spec: EnvironmentSpec, hosts: int) -> None:
    batch = experiment.builder.make_replay_spec(spec).batch_size
    if batch % hosts:
        near = batch - batch % hosts or hosts
        raise RequestError(
            f"{hosts} learner hosts cannot share a batch of {batch} equally; take "
            f"--config.batch_size {near}, or --learner-hosts that divide {batch}."
        )
    mesh = experiment.partition.mesh if experiment.partition is not None else None
    if mesh is not None and mesh.size % hosts:
        raise RequestError(
            f"{hosts} learner hosts cannot share mesh {mesh} equally: it has {mesh.size} devices; "
            f"make --mesh a multiple of {hosts}."
        )


def _processors(
    experiment: Experiment, spec: EnvironmentSpec, hosts: int
) -> tuple[tuple[str, str], ...]:
    """The environment of a process with its share of the mesh as virtual devices of the CPU."""
    if experiment.partition is not None:
        devices = experiment.partition.mesh.size // hosts
    else:
        devices = runtime.virtual_devices() or 1
        batch = experiment.builder.make_replay_spec(spec).batch_size
        if batch % (devices * hosts):
            raise RequestError(
                f"{hosts} learner hosts with {devices} devices each (XLA_FLAGS) cannot share a "
                f"batch of {batch} equally; make it a multiple of {devices * hosts}."
            )
    return tuple(runtime.with_virtual_devices(devices).items())


def _check_mesh(experiment: Experiment, gpus: int) -> None:
    if experiment.partition is not None and experiment.partition.mesh.size > gpus:
        mesh = experiment.partition.mesh
        raise RequestError(
            f"mesh {mesh} needs {mesh.size} GPUs and there are {gpus}; take a smaller mesh, "
            "or --learner-device cpu."
        )


def _accelerators(experiment: Experiment, hosts: int) -> list[tuple[tuple[str, str], ...]]:
    """Environments in which each process of the learner sees GPUs of its own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        found = pathlib.Path("/dev").glob("nvidia[0-9]*")
        names = sorted((path.name.removeprefix("nvidia") for path in found), key=int)
    else:
        names = [name.strip() for name in visible.split(",") if name.strip()]
    share, rest = divmod(len(names), hosts)
    if not share or rest:
        raise RequestError(
            f"{hosts} learner hosts cannot share {len(names)} GPUs equally; take a number of hosts "
            "that divides the number of GPUs (--learner-hosts), or --learner-device cpu."
        )
    _check_mesh(experiment, share * hosts)
    shares = [names[rank * share : (rank + 1) * share] for rank in range(hosts)]
    return [(("CUDA_VISIBLE_DEVICES", ",".join(one)),) for one in shares]
