"""Measuring an agent."""

from troupe.baselines.speed import agents


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
