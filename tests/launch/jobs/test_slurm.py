"""Jobs of SLURM: the batch scripts that `troupe deploy slurm --print` writes, on a real cluster."""

import contextlib
import io
import os
import pathlib
import signal
import time

import pytest

from troupe.baselines.command.line import main
from troupe.baselines.settings import SETTINGS

from .cluster import Slurm, requires_slurm

FULL = pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="minutes; set TROUPE_FULL=1")
BUDGET = 20_000
#: Not spent in the half minute that SLURM takes to notice that a node is lost.
LONGER = 3 * BUDGET
AGAIN = "queued again"
GOES_ON = "goes on in"
GRACE = 40
NODES = 4
#: A DQN that learns little, so that most of the time is SLURM's.
SMALL = {
    "hidden_sizes": "8",
    "batch_size": 4,
    "min_replay_size": 100,
    "samples_per_insert": 2.0,
    "steps_per_dispatch": 2,
    "num_envs": 2,
}

pytestmark = [pytest.mark.long, requires_slurm]


@pytest.fixture
def slurm(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")
    (tmp_path / "cluster").mkdir()
    with Slurm(tmp_path / "cluster", NODES, grace=GRACE) as made:
        yield made


def write(out, *flags, steps=None, nodes=2, config=SMALL, settings=()):
    """The script of a run; without tuned settings it says all that differs from them."""
    more = [f"--config.{name}={value}" for name, value in config.items()]
    more += ["--steps", str(steps)] if steps else []
    words = ["dqn", "--env", "CartPole-v1", "--actors", "2"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        command = ["deploy", "slurm", *words, "--nodes", str(nodes), "--out", str(out), "--print"]
        assert main([*command, *more, *flags], settings) == 0
    script = out.with_name(f"{out.name}.sbatch")
    script.write_text(said.getvalue())
    return script


@pytest.fixture
def played(tmp_path):
    (tmp_path / "cluster").mkdir()
    script = pathlib.Path(__file__).with_name("played.py")
    with Slurm(tmp_path / "cluster", NODES, grace=GRACE, played=script) as made:
        yield made


def play(slurm, tmp_path, *words):
    """A job whose run does nothing, once it has begun, and what the run has heard."""
    out = tmp_path / "run"
    job = slurm.submit(*words, write(out), out=out)
    heard = out.with_suffix(".heard")
    job.until(heard.exists)
    return job, lambda: [line.split()[0] for line in heard.read_text().splitlines()]


def test_what_slurm_says_is_heard_once_and_the_job_goes_on_or_ends(played, tmp_path):
    """By a run that is played: the others, which take minutes, have real ones."""
    job, heard = play(played, tmp_path)
    played.call("scancel", "--batch", "--signal=USR1", job.number)  # As before the time limit.
    job.until_again(1)
    job.until(lambda: heard()[-1] == "resume")
    everything = ["--partition=urgent", f"--nodes={NODES}", "--exclusive", "--output=/dev/null"]
    with played.paused(job.nodes[1]):  # It is slow to say that it has passed on what SLURM says.
        urgent = played.submit(*everything, "--wrap=true")
        job.until(lambda: job.log.count(AGAIN) == 2)
    job.until(lambda: job.restarts == 2)
    assert urgent.until_over() == "COMPLETED"
    job.until_again(2)
    job.until(lambda: heard()[-1] == "resume")
    played.call("scancel", job.number)
    assert job.until_over() == "CANCELLED"
    assert heard() == ["train", *["saved", "resume"] * 2, "saved"], job.tail()
    assert job.restarts == 2
    assert not list(played.processes())


@FULL
@pytest.mark.parametrize("which", ["of the script", "another"])
def test_a_job_that_has_lost_a_node_is_begun_again_on_others(played, tmp_path, which):
    if played.hosts is None:
        pytest.skip("namespaces are not allowed here: nodes are not lost")
    # The controller, which is on the first node, is not what is lost.
    job, heard = play(played, tmp_path, "--exclude=h0")
    lost = job.nodes[0 if which == "of the script" else 1]
    played.hosts.kill(lost)
    print(f"{which}: queued again after {job.until_again(1):.1f} s")
    job.until(lambda: heard()[-1] == "resume")
    assert lost not in job.nodes


@FULL
def test_near_its_limit_a_job_is_queued_again_and_cancelled_it_ends(slurm, tmp_path):
    """Both times with a checkpoint."""
    out = tmp_path / "run"
    # Of minutes: SLURM looks at limits but twice a minute, and a run takes its time to begin.
    limit = ["--time=4", "--signal=B:USR1@120"]
    job = slurm.submit(*limit, write(out, steps=1_000_000), out=out)
    job.until(lambda: job.steps > 200)
    job.until(lambda: job.restarts == 1)
    assert "with a checkpoint saved" in job.log
    assert AGAIN in job.log
    saved = job.saved["actor_steps"]
    assert saved > 200
    job.until_again(1)
    assert f"from {job.newest} at {saved:,} actor steps" in job.until_log(GOES_ON)
    job.until(lambda: job.steps > saved + 200)
    slurm.call("scancel", job.number)
    assert job.until_over() == "CANCELLED"
    assert job.log.count("troupe: stopped at") == 2, job.tail()
    assert job.saved["actor_steps"] > saved + 200
    assert job.restarts == 1
    assert not list(slurm.processes())


@FULL
def test_a_job_makes_way_for_another_and_goes_on(slurm, tmp_path):
    out = tmp_path / "run"
    job = slurm.submit(write(out, steps=BUDGET), out=out)
    job.until(lambda: job.steps > 200)
    everything = ["--partition=urgent", f"--nodes={NODES}", "--exclusive", "--output=/dev/null"]
    urgent = slurm.submit(*everything, "--wrap=sleep 5")
    began = time.monotonic()
    job.until(lambda: job.restarts == 1)
    print(f"made way after {time.monotonic() - began:.1f} s of a grace of {GRACE} s")
    assert time.monotonic() - began < GRACE
    saved = job.saved["actor_steps"]
    assert "with a checkpoint saved" in job.log
    assert urgent.until_over() == "COMPLETED"
    job.until_again(1)
    assert f"at {saved:,} actor steps" in job.until_log(GOES_ON)
    ended_well(slurm, job, restarts=1)


@FULL
@pytest.mark.parametrize("which", ["of the script", "another"])
def test_a_node_is_lost(slurm, tmp_path, which):
    """The job is begun again on others, and goes on from its newest checkpoint."""
    if slurm.hosts is None:
        pytest.skip("namespaces are not allowed here: nodes are not lost")
    out = tmp_path / "run"
    # The controller, which is on the first node, is not what is lost.
    job = slurm.submit("--exclude=h0", write(out, steps=LONGER), out=out)
    job.until(lambda: job.steps > 200 and job.saved)
    lost = job.nodes[0 if which == "of the script" else 1]
    slurm.hosts.kill(lost)
    print(f"{which}: queued again after {job.until_again(1):.1f} s")
    job.until_log(GOES_ON)
    assert lost not in job.nodes
    ended_well(slurm, job, restarts=1, budget=LONGER)


@FULL
def test_a_job_whose_head_is_gone_ends(slurm, tmp_path):
    out = tmp_path / "run"
    job = slurm.submit(write(out, steps=1_000_000), out=out)
    job.until(lambda: job.steps > 200)
    (server,) = (pid for pid in slurm.processes() if "gcs_server" in command(pid))
    os.kill(server, signal.SIGKILL)
    began = time.monotonic()
    assert job.until_over() == "FAILED"
    print(f"ended {time.monotonic() - began:.1f} s after its head")


@FULL
def test_a_job_learns_what_there_is_to_learn(slurm, tmp_path):
    out = tmp_path / "run"
    script = write(out, "--target", "475", nodes=3, config={}, settings=SETTINGS)
    job = slurm.submit(script, out=out)
    assert job.until_over(seconds=900) == "COMPLETED", job.tail()
    last = job.result["evaluation"][-1]["mean"]
    print(last, job.result["actor_steps"], job.result["samples_per_insert"])
    assert last >= 475
    assert job.result["samples_per_insert"]["observed"] == pytest.approx(32.0, rel=0.05)


def ended_well(slurm, job, restarts, budget=BUDGET):
    assert job.until_over(seconds=400) == "COMPLETED", job.tail()
    assert job.restarts == restarts
    assert budget - 2 < job.result["actor_steps"] <= budget
    assert not list(slurm.processes())


def command(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    return ""
