"""A learner of two processes in whole programs: it is lost and found, stopped, and never two."""

import os
import signal
import time

import pytest

pytest.importorskip("launchpad")

from troupe import agents, environments, launch
from troupe import partitioning as pt
from troupe.baselines.command.line import main
from troupe.launch.distributed.engines.launchpad import program

pytestmark = pytest.mark.distributed

RANKS = ("learner/0", "learner/1")


def ranks(run):
    """Process ids of the two ranks, where both are there."""
    found = run.roles()
    return [found[name] for name in RANKS if name in found]


def gang_experiment(mesh=None, learner_device="auto", **config):
    partition = mesh and launch.Partition(pt.parse_mesh(mesh), pt.parse_schedule("batch:data"))
    builder = agents.find_builder("dqn")
    builder = builder(builder.config_class(hidden_sizes=(4,), **config))
    return launch.Experiment(
        builder=builder,
        environment_factory=lambda *, seed, num_envs, evaluation: environments.make(
            "fake/ragged", seed=seed, num_envs=num_envs
        ),
        env="fake/ragged",
        num_actor_steps=2_000,
        partition=partition,
        learner_device=learner_device,
    )


@pytest.mark.long
def test_a_lost_rank_is_found_again_and_the_run_ends_at_its_budget(start):
    run = start(what="unhurried", actors=1, learner_hosts=2, steps=3000)
    run.until(lambda: len(ranks(run)) == 2 and run.steps() > 200)
    sockets = run.listening()
    assert len(sockets) >= 3 + 3  # What others have, where ranks meet, and theirs to each other.
    assert {a.removeprefix("::ffff:") for found in sockets.values() for a in found} == {"127.0.0.1"}
    # Right behind a checkpoint: what was drawn for steps since the last one is lost.
    saved = run.manifest["counters"]["learner_steps"]
    run.until(lambda: run.manifest["counters"]["learner_steps"] > saved)
    first, began = ranks(run), time.monotonic()
    os.kill(first[1], signal.SIGKILL)
    run.until(lambda: len(ranks(run)) == 2 and not set(ranks(run)) & set(first), run.RECOVERY)
    before = run.manifest["counters"]["learner_steps"]
    run.until(lambda: run.manifest["counters"]["learner_steps"] > before, run.RECOVERY)
    assert time.monotonic() - began < run.RECOVERY
    second = ranks(run)
    run.tell()
    assert run.wait() == 0, run.tail()
    assert "learner/1 failed: killed by SIGKILL; the 2 of its gang are started" in run.output
    assert run.result["learner_hosts"] == 2
    assert 2998 < run.result["actor_steps"] <= 3000
    assert run.result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    # Gradient steps follow from what was drawn: each rank drew its half of every batch.
    assert run.result["learner_steps"] == pytest.approx(3000 * 2.0 / 4, rel=0.1)
    assert not [pid for pid in (*first, *second) if os.path.exists(f"/proc/{pid}")]


@pytest.mark.long
def test_sigterm_ends_all_ranks_with_a_checkpoint(start):
    run = start(actors=1, learner_hosts=2, steps=1_000_000)
    run.until(lambda: len(ranks(run)) == 2 and run.steps() > 300)
    pids = run.roles().values()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1
    assert "with a checkpoint saved" in run.output
    assert "Traceback" not in run.tail()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="a minute; set TROUPE_FULL=1")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV])
def test_any_rank_may_fail_in_any_way(start, rank, number):
    run = start(actors=1, learner_hosts=2, steps=1_000_000)
    run.until(lambda: len(ranks(run)) == 2 and run.steps() > 300)
    first, began = ranks(run), time.monotonic()
    os.kill(first[rank], number)
    run.until(lambda: len(ranks(run)) == 2 and not set(ranks(run)) & set(first), run.RECOVERY)
    before = run.manifest["counters"]["learner_steps"]
    run.until(lambda: run.manifest["counters"]["learner_steps"] > before, run.RECOVERY)
    assert time.monotonic() - began < run.RECOVERY
    assert f"learner/{rank} failed: " in run.output
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1


@pytest.mark.long
def test_ranks_that_hold_different_states_end_the_run(start):
    run = start(actors=1, learner_hosts=2, steps=1_000_000, astray=True)
    assert run.wait() == 1, run.tail()
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("troupe: learner/0 failed: GangError: rank 1 of the learner holds")
    assert not (run.out / "checkpoints").exists()  # Nothing of it was kept.


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path):
    with pytest.raises(launch.RequestError, match="3 learner hosts cannot share a batch of 64"):
        program.make_program(gang_experiment(batch_size=64), tmp_path, learner_hosts=3)
    # The suite has eight virtual devices in every process.
    with pytest.raises(launch.RequestError, match=r"60 equally; make it a multiple of 24\."):
        program.make_program(gang_experiment(batch_size=60), tmp_path, learner_hosts=3)
    made = program.make_program(gang_experiment(batch_size=48), tmp_path, learner_hosts=3)
    assert len(made.groups["learner"]) == 3


def test_threads_are_no_hosts(tmp_path):
    made = program.make_program(gang_experiment(batch_size=64), tmp_path / "run", learner_hosts=2)
    with pytest.raises(launch.RequestError, match="a learner of 2 hosts needs --launch processes"):
        launch.launch(made, "threads")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--launch", "threads"], "--learner-hosts 3 needs --launch processes"),
        ([], "--learner-hosts 3 needs --launch processes"),
        (["--launch", "processes", "--config.batch_size", "64"], "share a batch of 64 equally"),
        (
            ["--launch", "processes", "--config.batch_size", "63", "--learner-device", "gpu"],
            "3 learner hosts cannot share 2 GPUs equally",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    out = tmp_path / "run"
    run = ["train", "dqn", "--env", "CartPole-v1", "--out", str(out), "--learner-hosts", "3"]
    assert main([*run, *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize(("hosts", "each"), [(1, 16), (2, 8), (4, 4)])
def test_every_host_has_its_share_of_the_mesh(tmp_path, hosts, each):
    experiment = gang_experiment(batch_size=64, mesh="data=16")
    made = program.make_program(experiment, tmp_path, learner_hosts=hosts)
    for node in made.groups["learner"]:
        flags = dict(node.role_settings.environment)["XLA_FLAGS"]
        assert flags.split().count(f"--xla_force_host_platform_device_count={each}") == 1
        assert flags.count("device_count") == 1


def test_a_mesh_larger_than_the_gpus_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    experiment = gang_experiment(batch_size=64, mesh="data=4", learner_device="gpu")
    with pytest.raises(launch.RequestError, match="data=4 needs 4 GPUs and there are 2;"):
        program.make_program(experiment, tmp_path)


def test_every_host_has_gpus_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    experiment = gang_experiment(batch_size=64, learner_device="gpu")
    made = program.make_program(experiment, tmp_path, learner_hosts=2)
    seen = [dict(node.role_settings.environment) for node in made.groups["learner"]]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["4,5", "6,7"]
