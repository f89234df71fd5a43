"""Measuring an agent."""

from troupe.baselines.speed import agents


def test_too_few_steps_to_measure_are_told_on_one_line(capsys):
    assert agents.main(["dqn", "--env", "CartPole-v1", "--steps", "1000"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("troupe: learning begins with env step 1,")
    assert line.endswith("of 1,000 none is left to be measured; give more --steps.")
