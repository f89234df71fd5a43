"""Jobs of schedulers: the script is run, its scheduler played; manifests are validated."""

import copy
import itertools
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time

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


#: Commands that a script of SLURM calls.
PLAYED = {
    "scontrol": """[ "$1" = show ] && exec printf "h0\\nh1\\n"
        echo "scontrol $*" >> "$HEARD" """,
    "srun": 'echo "srun $*" >> "$HEARD"',
    "getent": 'printf "127.0.1.1 STREAM h0\\n10.0.0.1 STREAM h0\\n"',
    "ray": """echo "ray $*" >> "$HEARD"; printf " 1 node_a\\n 1 node_b\\n" """,
    "troupe": """echo "troupe $*" >> "$HEARD"
        trap 'echo saved >> "$HEARD"; exit 143' TERM
        mkdir -p "$OUT"; echo > "$OUT/config.json"
        [ "$1" = resume ] && exit 3
        echo begun > "$BEGUN"
        while :; do sleep 0.05; done""",
}


class Scheduler:
    """SLURM as a script of it knows it: what it calls is written down."""

    def __init__(self, folder, script, out):
        self._heard, self.begun = folder / "heard", folder / "begun"
        for name, text in PLAYED.items():
            path = folder / name
            path.write_text(f"#!/bin/bash\n{text}\n")
            path.chmod(0o755)
        self._script = folder / "job.sh"
        self._script.write_text(script)
        self._environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HEARD": str(self._heard),
            "BEGUN": str(self.begun),
            "OUT": str(out),
            "SLURM_JOB_NODELIST": "h[0-1]",
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_PER_TASK": "4",
        }

    def start(self):
        """The script."""
        self._heard.write_text("")
        return subprocess.Popen(["bash", self._script], env=self._environment)

    @property
    def heard(self):
        return self._heard.read_text().splitlines()


def test_a_script_for_slurm(capsys, tmp_path):
    out = tmp_path / "shared" / "mine"
    script = printed(capsys, "slurm", out, "--nodes", "2", "--config.batch_size", "32")
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=2", "#SBATCH --cpus-per-task=3"} <= set(options)
    scheduler = Scheduler(tmp_path, script, out)
    job = scheduler.start()
    deadline = time.monotonic() + 20
    while not scheduler.begun.exists() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)  # The time limit is near.
    assert job.wait(20) == 143
    heard = scheduler.heard
    assert [line for line in heard if line.startswith("ray start --head --port 20007")]
    assert [line for line in heard if "--nodelist=h1 ray start --address 10.0.0.1:20007" in line]
    (train,) = (shlex.split(line) for line in heard if line.startswith("troupe train dqn"))
    pairs = set(itertools.pairwise(train))
    asked = {"--env": "CartPole-v1", "--launch": "ray", "--actors": "6", "--actor-cpus": "0.5"}
    settled = {"--config.batch_size": "32", "--address": "auto", "--out": str(out)}
    assert {*asked.items(), *settled.items()} <= pairs
    assert heard[-3:] == ["saved", "ray stop", "scontrol requeue 7"]
    token = pathlib.Path(f"{out}.token")
    assert (len(token.read_text()), token.stat().st_mode & 0o777) == (64, 0o600)
    # Queued again, it goes on with the run; a failure of its own ends it.
    assert scheduler.start().wait(20) == 3
    assert f"troupe resume {out} --address auto" in scheduler.heard
    assert "scontrol requeue 7" not in scheduler.heard


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
    assert (
        "exec troupe resume /runs/mine --address auto; else exec troupe train dqn"
        in (shlex.split(spec["entrypoint"])[2])
    )
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("slurm --out runs/mine --print", "--out is 'runs/mine'; give a job the whole path"),
        ("slurm --out /runs/mine", "give --print"),
        ("slurm --out /runs/mine --print --address auto", "leave out --launch and --address"),
        ("slurm --out /runs/mine --print --launch threads", "leave out --launch and --address"),
        ("slurm --out /r/m --print --learner-hosts 4", "4 learner hosts have no node each"),
        ("slurm --out /r/m --print --minutes 1", "minutes is 1"),
        ("kubernetes --out /runs/mine --print", "--image is missing"),
    ],
)
def test_what_cannot_be_a_job(capsys, arguments, words):
    where, *more = arguments.split()
    assert main(["deploy", where, *TRAIN, *more]) == 2
    assert words in capsys.readouterr().err
