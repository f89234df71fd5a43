"""Manifests for Kubernetes: of KubeRay's RayJob, or of an Indexed Job whose pods are hosts."""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

from ..errors import RequestError
from .job import PROCESSES, Job

_RUN_LABEL = "troupe/run"
_DASHBOARD = 8265
_MEMORY_GI, _STORE_GI = 4, 2
_RETRIES = 10
_GRACE_SECONDS = 120
_ENVIRONMENT = ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness")
_NAMES_SECONDS = 600
"""How long a pod waits until the names of the others are known."""


def manifests(job: Job) -> dict[str, Any]:
    """What `kubectl apply -f -` takes, as one list.

    Of Ray the head has no roles, so that the run goes on elsewhere whichever worker is lost. A job
    whose head is lost is tried again, in a new cluster, and goes on with the run.

    Of processes every pod is a host, by its index the same one always, and a pod that is lost is
    replaced.

    Raises:
      RequestError: if it does not say which image and which volume.
    """
    for flag, value in (("--image", job.image), ("--claim", job.claim)):
        if not value:
            raise RequestError(f"{flag} is missing: pods need an image, and a volume that all see.")
    if job.launch == PROCESSES:
        items = [_service(job), _indexed_job(job), _network_policy(job)]
    else:
        items = [_ray_job(job), _network_policy(job, _DASHBOARD)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


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


def _run(job: Job, *more: str) -> str:
    """Begins the run or goes on with it; one that is complete is left as it ended."""
    out = shlex.quote(job.out)
    begin, go_on = (" ".join([command, *more]) for command in (job.begin, job.go_on))
    return (
        f"if [ -e {job.result} ]; then {job.outcome}; exit; "
        f"elif [ -e {out}/config.json ]; then exec {go_on}; else exec {begin}; fi"
    )


def _service(job: Job) -> dict[str, Any]:
    """Gives pods names of their own from their start: each waits for those of all."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name, "labels": {_RUN_LABEL: job.name}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {_RUN_LABEL: job.name},
        },
    }


def _indexed_job(job: Job) -> dict[str, Any]:
    # What Kubernetes calls the pods of an Indexed Job, below the service.
    names = [f"{job.name}-{index}.{job.name}" for index in range(job.nodes)]
    hosts = f"--hosts {','.join(names)}"
    wait = (
        f"for name in {' '.join(names)}; do for _ in $(seq {_NAMES_SECONDS}); do "
        'getent ahostsv4 "$name" > /dev/null && break; sleep 1; done; done'
    )
    words = f"{wait}; {_run(job, hosts)}"
    pod = _pod(job, "host", job.cpus_of_a_node, job.gpus_of_a_node)
    pod["spec"] |= {"subdomain": job.name, "restartPolicy": "Never"}
    pod["spec"]["containers"][0] |= {"command": ["sh", "-c", words]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "labels": {_RUN_LABEL: job.name}},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimitPerIndex": _RETRIES,
            "maxFailedIndexes": 0,
            # Else two pods of one index live at once, and are one host twice.
            "podReplacementPolicy": "Failed",
            # A pod that had to make way for others has not failed.
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
            },
            "activeDeadlineSeconds": 60 * job.minutes,
            "template": pod,
        },
    }


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
    if job.launch == PROCESSES:
        return []
    # Else roles are behind all else that a node does.
    return [{"name": name, "value": "0"} for name in _ENVIRONMENT]


def _network_policy(job: Job, open_port: int | None = None) -> dict[str, Any]:
    """Only pods of the run reach its ports, but for the one by which KubeRay submits and looks."""
    own = {"matchLabels": {_RUN_LABEL: job.name}}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": own}]}]
    if open_port is not None:
        ports = [{"protocol": "TCP", "port": open_port}]
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": ports})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": job.name},
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress},
    }
