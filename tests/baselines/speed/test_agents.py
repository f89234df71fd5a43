"""Measuring an agent."""

import pytest

from troupe.baselines.speed import agents, peers


def test_too_few_steps_to_measure_are_told_on_one_line(capsys):
    assert agents.main(["dqn", "--env", "CartPole-v1", "--steps", "1000"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("troupe: learning begins with env step 1,")
    assert line.endswith("of 1,000 none is left to be measured; give more --steps.")


def test_a_run_that_is_over_is_told(capsys):
    assert (
        agents.main(["ppo", "--env", "CartPole-v1", "--steps", "1024", "--evaluate-every", "512"])
        == 0
    )
    out, err = capsys.readouterr()
    assert "env_steps_per_second" in out
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
    (run,) = asked
    assert (run.agent, run.total_steps) == (peer, 1024)
    assert run.hyperparameters == peers.ZOO[peer, env]["hyperparameters"]
    out = capsys.readouterr().out
    assert "+0.0  sb3  last_return" in out
    assert " x sb3" not in out  # Rates of other settings do not compare.


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
    timed = agents.compare(runs, to_target=True)
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
        agents.compare(missed, to_target=True)["medians"]["sb3"]["wall_seconds_to_target"] is None
    )
    untimed = agents.compare(runs, same_settings=False)
    assert untimed["leads"] == {"sb3": 20.0}
    assert untimed["ratios"] == {"sb3": {}}
    assert "wall_seconds_to_target" not in untimed["medians"]["sb3"]


@pytest.mark.parametrize(
    "line",
    ["sac --env Pendulum-v1", "dqn --env CartPole-v1 --workload prioritised"],
)
def test_a_workload_that_the_others_do_not_have_is_refused(line, capsys):
    assert agents.main([*line.split(), "--against", "sb3=python"]) == 2
    assert "the other libraries have no such workload" in capsys.readouterr().err
