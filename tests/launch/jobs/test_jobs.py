"""Jobs of schedulers: what scripts say; manifests are validated."""

import contextlib
import copy
import itertools
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys

import pytest

from troupe.baselines.command.commands import ALL
from troupe.baselines.command.line import main
from troupe.baselines.command.parser import Commands

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "clusters.md"
TRAIN = ["dqn", "--env", "CartPole-v1", "--actors", "6", "--actor-cpus", "0.5"]


def printed(capsys, where, out, *more):
    assert main(["deploy", where, *TRAIN, "--out", str(out), "--print", *more]) == 0
    return capsys.readouterr().out


def test_what_the_docs_show():
    """Every job in the docs is written, and every other command there is one."""
    if not DOCS.exists():
        pytest.skip("the docs are not here")
    text = DOCS.read_text()
    lines = [line.partition("#")[0] for line in text.splitlines() if line.startswith("troupe ")]
    commands = [shlex.split(line.partition(">")[0])[1:] for line in lines]
    assert {words[0] for words in commands} == {"train", "resume", "deploy"}
    for words in commands:
        if words[0] == "deploy":
            assert main(words) == 0
            continue
        known = Commands(words)
        for command in ALL:
            command.register(known)
        assert known.parser.parse_args(words).command is not None
    assert all(f"troupe deploy {where}" in text for where in ("slurm", "kubernetes"))


# SLURM.


def test_a_script_for_slurm(capsys, tmp_path):
    """What it says; `test_slurm.py` has a cluster run it."""
    out = tmp_path / "shared" / "mine"
    more = ["--nodes", "2", "--config.batch_size", "32"]
    script = printed(capsys, "slurm", out, *more)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=2", "#SBATCH --cpus-per-task=3"} <= set(options)
    (line,) = (line for line in script.splitlines() if "troupe train dqn" in line)
    train = shlex.split(line)
    asked = {
        "--env": "CartPole-v1",
        "--launch": "ray",
        "--address": "auto",
        "--actors": "6",
        "--out": str(out),
    }
    asked |= {"--config.batch_size": "32"}
    assert asked.items() <= set(itertools.pairwise(train))


#: Commands that a script calls, where there is no SLURM: what they are told is written down. To
#: connect to 0.0.0.0 is to connect to this machine, and it is no loopback's address.
PLAYED = {
    "scontrol": '[ "$1 $2" = "show hostnames" ] && printf "h0\\nh1\\n"',
    "srun": "",
    "getent": 'printf "127.0.1.1 STREAM h0\\n0.0.0.0 STREAM h0\\n"',
    "ray": f"""printf " 1 node_a\\n 1 node_b\\n"; [ "$2" = --head ] && exec {sys.executable} -c "
import socket, time
with socket.create_server(('127.0.0.1', $4)):
    time.sleep(60)" """,
    "troupe": 'mkdir -p "$OUT"; echo > "$OUT/config.json"; exit 3',
}


def test_a_run_that_fails_ends_its_job_with_its_exit_code(capsys, tmp_path):
    out, told = tmp_path / "shared" / "mine", tmp_path / "told"
    script = printed(capsys, "slurm", out, "--nodes", "2")
    for name, text in PLAYED.items():
        path = tmp_path / name
        path.write_text(f'#!/bin/bash\nwords="$*"\necho "{name} "$words >> "$TOLD"\n{text}\n')
        path.chmod(0o755)
    port = free_port()
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TOLD": str(told),
        "OUT": str(out),
        "SLURM_JOB_NODELIST": "h[0-1]",
        "SLURM_JOB_ID": str(port - 20_000),
        "SLURM_CPUS_PER_TASK": "4",
    }

    def play():
        told.write_text("")
        done = subprocess.run(
            ["bash"], input=script, text=True, env=environment, timeout=60, check=False
        )
        return done, told.read_text().splitlines()

    for how in ("train dqn", f"resume {out}"):  # Queued again, it goes on with the run.
        done, lines = play()
        assert done.returncode == 3, lines
        assert any(line.startswith(f"troupe {how}") for line in lines)
        assert not any("requeue" in line for line in lines)
        (head,) = (line for line in lines if line.startswith("ray start --head"))
        assert f"--port {port} --node-ip-address 0.0.0.0 " in head
        (other,) = (line for line in lines if "--nodelist=h1" in line)
        assert f" ray start --address 0.0.0.0:{port} " in other
        token = pathlib.Path(f"{out}.token")
        assert (len(token.read_text()), token.stat().st_mode & 0o777) == (64, 0o600)
    for reached, code in (
        ("null", 0),
        ("true", 0),
        ("false", 1),
    ):  # Complete: a node was lost then.
        (out / "result.json").write_text(f'{{\n "reached": {reached},\n "best": null\n}}\n')
        done, lines = play()
        assert done.returncode == code
        assert not any(line.startswith("troupe") for line in lines)


def free_port():
    """One of those that scripts take for Ray."""
    for port in range(20_000, 30_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


# Kubernetes.


def shape(required=(), **properties):
    """A JSON schema of an object that has these fields and no other."""
    closed = {"additionalProperties": False, "required": list(required)}
    return {"type": "object", "properties": properties, **closed}


STRING, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
WORDS = {"type": "object", "additionalProperties": STRING}
GROUP = {"rayStartParams": WORDS, "template": {"type": "object"}}
#: What manifests here may say of a `RayJob` of ray.io/v1; the pods in it are Kubernetes' own.
RAY_JOB = shape(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=shape(["name"], name=STRING, labels=WORDS),
    spec=shape(
        ["entrypoint", "rayClusterSpec"],
        entrypoint=STRING,
        backoffLimit=COUNT,
        activeDeadlineSeconds=COUNT,
        shutdownAfterJobFinishes={"type": "boolean"},
        rayClusterSpec=shape(
            ["headGroupSpec"],
            authOptions=shape(mode={"enum": ["disabled", "token"]}),
            headGroupSpec=shape(["template"], **GROUP),
            workerGroupSpecs={
                "type": "array",
                "items": shape(
                    ["groupName", "template"],
                    groupName=STRING,
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    **GROUP,
                ),
            },
        ),
    ),
)


def pods(job):
    """What a job has Kubernetes make, as a whole pod each."""
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield {"apiVersion": "v1", "kind": "Pod", **group["template"]}


def validate(job):
    """Raises what is wrong with a job: by the shape above, and by Kubernetes' published schemas."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.validate(job, RAY_JOB)
    for pod in pods(job):
        validate_own(pod)


def validate_own(manifest):
    """Raises what is wrong with an object that is Kubernetes' own."""
    schemas = pytest.importorskip("kubernetes_validate", reason="there are no schemas here")
    schemas.validate(manifest, schemas.latest_version(), strict=True)


def items(capsys, *more):
    named = ("--image", "lab/troupe:1", "--claim", "runs", "--nodes", "3")
    found = json.loads(printed(capsys, "kubernetes", "/runs/mine", *named, *more))["items"]
    return {one["kind"]: one for one in found}


def test_manifests_for_kubernetes(capsys):
    found = items(capsys, "--learner-gpus", "2", "--learner-hosts", "2")
    job = found["RayJob"]
    validate(job)
    validate_own(found["NetworkPolicy"])
    spec = job["spec"]
    words = shlex.split(spec["entrypoint"])[2]
    assert words.startswith("if [ -e /runs/mine/result.json ]; then ! grep -q ")
    assert "exec troupe resume /runs/mine --address auto; else exec troupe train dqn" in words
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert (workers["replicas"], container["resources"]["limits"]["nvidia.com/gpu"]) == (3, "2")
    # The head takes no role, and only pods of the run reach all of its ports.
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    policy = found["NetworkPolicy"]["spec"]
    for template in (workers["template"], spec["rayClusterSpec"]["headGroupSpec"]["template"]):
        labels = template["metadata"]["labels"].items()
        assert policy["podSelector"]["matchLabels"].items() <= labels
    assert policy["ingress"][0] == {"from": [{"podSelector": policy["podSelector"]}]}


@pytest.mark.parametrize(("reached", "code"), [("null", 0), ("true", 0), ("false", 1)])
def test_a_pod_leaves_a_complete_run_as_it_ended(capsys, tmp_path, reached, code):
    words = shlex.split(items(capsys)["RayJob"]["spec"]["entrypoint"])[2]
    (tmp_path / "result.json").write_text(f'{{\n "reached": {reached},\n "best": null\n}}\n')
    done = subprocess.run(["sh", "-c", words.replace("/runs/mine", str(tmp_path))], check=False)
    assert done.returncode == code


MISTAKES = {
    "a misspelt field": lambda spec: spec.update(backofLimit=3),
    "a number as a word": lambda spec: spec.update(backoffLimit="3"),
    "a mode that is none": lambda spec: spec["rayClusterSpec"]["authOptions"].update(mode="on"),
    "a group without a name": lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].pop(
        "groupName"
    ),
    "a misspelt field of a pod": lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"][
        "spec"
    ].update(terminationGraceSeconds=1),
    "a volume without a claim": lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["template"][
        "spec"
    ]["volumes"][0]["persistentVolumeClaim"].clear(),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_manifests_are_found(capsys, mistake):
    job = copy.deepcopy(items(capsys)["RayJob"])
    validate(job)
    MISTAKES[mistake](job["spec"])
    with pytest.raises(Exception, match="Failed validating"):
        validate(job)


def test_a_mistake_in_the_policy_is_found(capsys):
    manifest = items(capsys)["NetworkPolicy"]
    validate_own(manifest)
    manifest["spec"]["ingress"][0].update(From=[])
    with pytest.raises(Exception, match="Failed validating"):
        validate_own(manifest)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("slurm --out runs/mine --print", "--out is 'runs/mine'; give a job the whole path"),
        ("slurm --out /runs/mine", "give --print"),
        ("slurm --out /runs/mine --print --address auto", "leave out --address"),
        ("slurm --out /runs/mine --print --hosts h0,h1", "--hosts is gone"),
        ("slurm --out /runs/mine --print --launch threads", "threads is on one machine"),
        ("slurm --out /runs/mine --print --launch processes", "processes is on one machine"),
        ("slurm --out /r/m --print --learner-hosts 4", "4 learner hosts have no node each"),
        ("slurm --out /r/m --print --minutes 1", "minutes is 1"),
        ("kubernetes --out /runs/mine --print", "--image is missing"),
    ],
)
def test_what_cannot_be_a_job(capsys, arguments, words):
    where, *more = arguments.split()
    assert main(["deploy", where, *TRAIN, *more]) == 2
    assert words in capsys.readouterr().err
