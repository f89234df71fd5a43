"""Manifests for Kubernetes: of KubeRay's RayJob."""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

from ..errors import RequestError
from .job import Job

_RUN_LABEL = "troupe/run"
_DASHBOARD = 8265
_MEMORY_GI, _STORE_GI = 4, 2
_RETRIES = 10
_GRACE_SECONDS = 120
_ENVIRONMENT = ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness")


def manifests(job: Job) -> dict[str, Any]:
    """Returns the objects that `kubectl apply -f -` takes, as one list.

    The head has no roles, so that the run goes on elsewhere whichever worker is lost. A job whose
    head is lost is tried again, in a new cluster, and goes on with the run.

    Raises:
      RequestError: if it does not say which image and which volume.
    """
    for flag, value in (("--image", job.image), ("--claim", job.claim)):
        if not value:
            raise RequestError(f"{flag} is missing: pods need an image, and a volume that all see.")
    return {"apiVersion": "v1", "kind": "List", "items": [_ray_job(job), _network_policy(job)]}


def _ray_job(job: Job) -> dict[str, Any]:
    words = _run(job)
    workers = {
        "groupName": "workers",
        "replicas": job.nodes,
        "minReplicas": job.nodes,
        "maxReplicas": job.nodes,
        "rayStartParams": {"num-cpus": str(job.cpus_of_a_node)},
        "template": _pod(job, "worker", job.cpus_of_a_node, job.gpus_of_a_node),
    }
    head = {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": _pod(job, "head", 1, 0),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name, "labels": {_RUN_LABEL: job.name}},
        "spec": {
            "entrypoint": f"sh -c {shlex.quote(words)}",
            "backoffLimit": _RETRIES,
            "activeDeadlineSeconds": 60 * job.minutes,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "authOptions": {"mode": "token"},
                "headGroupSpec": head,
                "workerGroupSpecs": [workers],
            },
        },
    }


def _run(job: Job) -> str:
    """Begins the run or goes on with it; one that is complete is left as it ended."""
    out = shlex.quote(job.out)
    return (
        f"if [ -e {job.result} ]; then {job.outcome}; exit; "
        f"elif [ -e {out}/config.json ]; then exec {job.go_on}; else exec {job.begin}; fi"
    )


def _pod(job: Job, name: str, cpus: int, gpus: int) -> dict[str, Any]:
    size = {"cpu": str(cpus), "memory": f"{_MEMORY_GI + _STORE_GI + 2 * cpus}Gi"}
    if gpus:
        size["nvidia.com/gpu"] = str(gpus)
    container = {
        "name": name,
        "image": job.image,
        "env": _environment(job),
        "resources": {"requests": size, "limits": size},
        "volumeMounts": [
            {"name": "runs", "mountPath": str(pathlib.PurePosixPath(job.out).parent)},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "metadata": {"labels": {_RUN_LABEL: job.name}},
        "spec": {
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [container],
            "volumes": [
                {"name": "runs", "persistentVolumeClaim": {"claimName": job.claim}},
                # A pod has but 64 MB of shared memory by itself.
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_STORE_GI}Gi"}},
            ],
        },
    }


def _environment(job: Job) -> list[dict[str, str]]:
    # Else roles are behind all else that a node does.
    return [{"name": name, "value": "0"} for name in _ENVIRONMENT]


def _network_policy(job: Job) -> dict[str, Any]:
    """Only pods of the run reach its ports, but for the one by which KubeRay submits and looks."""
    own = {"matchLabels": {_RUN_LABEL: job.name}}
    dashboard = {"protocol": "TCP", "port": _DASHBOARD}
    ingress: list[dict[str, Any]] = [
        {"from": [{"podSelector": own}]},
        {"from": [{"namespaceSelector": {}}], "ports": [dashboard]},
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.name},
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress},
    }
