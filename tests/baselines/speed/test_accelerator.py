"""An accelerator beside its host: the runs that are asked for, and the figures that are told."""

import json

from troupe.baselines.speed import accelerator


def test_agents_train_in_turn_with_and_without_the_accelerator(monkeypatch):
    asked = []

    def train(agent, env, steps, *, cpu):
        asked.append(cpu)
        rate = {False: 300.0, True: 200.0}[cpu]
        devices = {"actor": "cpu", "learner": "cpu" if cpu else "gpu"}
        return {"env_steps_per_second": rate, "devices": devices}

    monkeypatch.setattr(accelerator, "train", train)
    row = accelerator.compare("dqn", "CartPole-v1", 10, rounds=2)
    assert asked == [False, True, True, False]
    assert (row["default"], row["cpu"], row["ratio"]) == (300.0, 200.0, 1.5)
    assert (row["actor_on"], row["learner_on"]) == ("cpu", "gpu")


def test_a_run_of_each_kind_and_what_fails_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(accelerator, "CALLS", accelerator.CALLS[:1])
    words = "--only ppo:CartPole-v1 dqn:CartPole-v1 --steps 900 --turns 1 --json"
    assert accelerator.main(words.split()) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    (row,) = found["agents"]
    assert (row["agent"], row["actor_on"], row["learner_on"]) == ("ppo", "cpu", "cpu")
    assert row["ratio"] > 0
    assert [one["model"] for one in found["updates"]] == ["dqn"]
    assert all(one["jax_over_jit"] > 0 for one in found["updates"])
    (failure,) = found["failures"]  # DQN of the zoo begins to learn after 1,000 steps.
    assert failure.startswith("dqn on CartPole-v1 failed: troupe: learning begins with env step")
    text = accelerator.table(found)
    assert "There is no accelerator here: both rates are the host's." in text
    assert text.count("on a mesh of one") == 1
