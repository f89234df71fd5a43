"""Measuring an agent."""

import os

import pytest

from troupe.baselines.speed import agents, comparison, peers


def test_too_few_steps_to_measure_are_told_on_one_line(capsys):
    assert agents.main(["dqn", "--env", "CartPole-v1", "--steps", "1000"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("troupe: learning begins with env step 1,")
    assert line.endswith("of 1,000 none is left to be measured; give more --steps.")


def test_a_run_without_a_gradient_step_after_the_warmup_is_told(capsys):
    assert agents.main(["dqn", "--env", "CartPole-v1", "--steps", "1600"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith("nothing was learned from there to 1,600; give more --steps.")


def test_a_run_that_is_over_is_told(capsys):
    assert (
        agents.main(["ppo", "--env", "CartPole-v1", "--steps", "1024", "--evaluate-every", "512"])
        == 0
    )
    out, err = capsys.readouterr()
    heading, columns, row = out.splitlines()
    assert heading == "ppo on CartPole-v1, 1,024 env steps, runs of each: 1"
    assert columns.split()[:2] == ["env", "steps/s"]
    assert row.startswith("troupe ")
    (line,) = err.strip().splitlines()
    assert line.startswith("troupe with seed 0: 1,0")
    assert line.count(" after ") == 2


@pytest.mark.parametrize(
    ("agent", "env", "peer"),
    [("ppo", "CartPole-v1", "ppo"), ("normalized+td3", "HalfCheetah-v5", "td3")],
)
def test_the_others_run_the_zoo_beside_tuned_settings(agent, env, peer, monkeypatch, capsys):
    asked = []
    done = {
        "env_steps": 1024,
        "env_steps_per_second": 1024.0,
        "env_steps_per_cpu_second": 512.0,
        "wall_seconds": 1.0,
        "target": None,
        "evaluations": [(1024, 9.0)],
    }

    def measure(python, settings):
        asked.append(settings)
        return done

    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setattr(agents, "measure", lambda *_, **__: done)
    line = f"{agent} --env {env} --workload tuned --steps 1024 --against sb3=python"
    assert agents.main(line.split()) == 0
    assert [run.torch_threads for run in asked] == sorted({1, len(os.sched_getaffinity(0))})
    for run in asked:
        assert (run.agent, run.total_steps) == (peer, 1024)
        assert run.hyperparameters == peers.ZOO[peer, env]["hyperparameters"]
    out = capsys.readouterr().out
    assert out.count("+0.0\n") == len(asked)
    assert "rates do not compare" in out
    assert " x" not in out


def test_a_target_is_timed_and_without_one_last_returns_are_compared():
    def run(rate, wall, value):
        reached = {"wall_seconds": wall, "cpu_seconds": wall}
        return {
            "env_steps_per_second": rate,
            "env_steps_per_cpu_second": rate,
            "warmup_seconds": 1.0,
            "warmup_cpu_seconds": 1.0,
            "target": reached if value >= 475 else None,
            "evaluations": [(1024, value)],
        }

    runs = {"troupe": [run(300.0, 3.0, 500.0)], "sb3": [run(100.0, 9.0, 480.0)]}
    timed = comparison.compare(runs, to_target=True)
    assert timed["medians"]["sb3"]["wall_seconds_to_target"] == 8.0
    assert timed["ratios"]["sb3"] == {
        "env_steps_per_second": 3.0,
        "env_steps_per_cpu_second": 3.0,
        "wall_seconds_to_target": 4.0,
        "cpu_seconds_to_target": 4.0,
    }
    assert timed["leads"] == {}
    missed = {**runs, "sb3": [run(100.0, 9.0, 400.0)]}
    assert (
        comparison.compare(missed, to_target=True)["medians"]["sb3"]["wall_seconds_to_target"]
        is None
    )
    untimed = comparison.compare(runs, same_settings=False)
    assert untimed["leads"] == {"sb3": 20.0}
    assert untimed["ratios"] == {"sb3": {}}
    assert "wall_seconds_to_target" not in untimed["medians"]["sb3"]


def test_others_have_the_threads_and_the_fused_steps_of_this_library(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    against = {"sb3": "one", "sbx": "two"}
    for agent, env, every, fused in [
        ("dqn", "CartPole-v1", 256, 128),
        ("dqn", "ALE/Pong-v5", 16, 4),
        ("sac", "HalfCheetah-v5", 8, 8),
        ("td3", "HalfCheetah-v5", 8, 8),
    ]:
        work = agents.workload(agent, env, "zoo")
        rivals = agents._rivals(agent, env, work, against)
        assert list(rivals) == ["sb3, 1 thread", "sb3, 4 threads", "sbx"]
        assert [run.torch_threads for _, run in rivals.values()][:2] == [1, 4]
        assert rivals["sb3, 4 threads"][0] == "one"
        zoo = peers.ZOO[agent, env]["hyperparameters"]
        assert rivals["sb3, 1 thread"][1].hyperparameters == zoo
        given = rivals["sbx"][1].hyperparameters
        assert (given["train_freq"], given["gradient_steps"]) == (every, fused)
        assert given["train_freq"] * zoo["gradient_steps"] == zoo["train_freq"] * fused
    ppo = agents._rivals(
        "ppo", "CartPole-v1", agents.workload("ppo", "CartPole-v1", "zoo"), against
    )
    assert ppo["sbx"][1] == peers.zoo("sbx", "ppo", "CartPole-v1")


def test_a_pace_that_does_not_divide_into_calls_is_refused():
    run = peers.PeerRun("sbx", "dqn", "E", 1, {"train_freq": 1, "gradient_steps": 2})
    with pytest.raises(ValueError, match="2 gradient steps for 1 env steps cannot be taken 3 at"):
        peers.with_fused_steps(run, 3)


def test_a_table_has_both_ratios_beside_the_rates():
    def run(rate, cpu):
        return {
            "env_steps_per_second": rate,
            "env_steps_per_cpu_second": cpu,
            "gradient_steps_per_call": 8.0,
            "evaluations": [],
        }

    runs = {"troupe": [run(300.0, 200.0)], "sbx": [run(200.0, 50.0)]}
    heading, ours, theirs, note = comparison.table(comparison.compare(runs)).splitlines()
    assert heading.split() == (
        ["env", "steps/s", "troupe", "is", "/CPU", "second", "troupe", "is", "updates/call"]
    )
    assert ours.split() == ["troupe", "300", "200", "8.0"]
    assert theirs.split() == ["sbx", "200", "1.50", "x", "50.0", "4.00", "x", "8.0"]
    assert note.startswith("N x: ")


@pytest.mark.parametrize(
    "line",
    ["sac --env Pendulum-v1", "dqn --env CartPole-v1 --workload prioritised"],
)
def test_a_workload_that_the_others_do_not_have_is_refused(line, capsys):
    assert agents.main([*line.split(), "--against", "sb3=python"]) == 2
    assert "the other libraries have no such workload" in capsys.readouterr().err
