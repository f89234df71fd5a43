"""The results page: what stands in it, its pictures, its commands, and what it refuses."""

import dataclasses
import json

import numpy as np
import pytest

from troupe.baselines.command.line import main as troupe
from troupe.baselines.report import again, page
from troupe.baselines.report.__main__ import main
from troupe.baselines.report.runs import collect
from troupe.baselines.report.summary import estimate, scales, together
from troupe.launch.experiment import Evaluation
from troupe.launch.logging import metrics
from troupe.launch.specification.recipe import Recipe

RECIPE = Recipe("dqn", "CartPole-v1", evaluation=Evaluation(every=500, target_return=400.0))


def put(folder, recipe, means):
    """The directory of a run that ended so, as a run leaves it."""
    folder.mkdir(parents=True)
    rows = [
        {"actor_steps": 500 * (i + 1), "learner_steps": 100 * (i + 1), "mean": mean}
        for i, mean in enumerate(means)
    ]
    result = {
        "agent": recipe.agent,
        "env": recipe.env,
        "seed": recipe.seed,
        "evaluation": rows,
        "actor_steps": rows[-1]["actor_steps"],
        "learner_steps": rows[-1]["learner_steps"],
        "wall_seconds": 3.0,
        "train_seconds": 2.0,
        "versions": {"python": "3.10", "jax": "0.6.2"},
    }
    (folder / "config.json").write_text(json.dumps(recipe.to_json()))
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def runs(tmp_path):
    """Two agents on two environments, three seeds each, and one with other settings."""
    for agent, env, level in (
        ("dqn", "CartPole-v1", 450.0),
        ("ppo", "CartPole-v1", 380.0),
        ("dqn", "Acrobot-v1", -100.0),
        ("ppo", "Acrobot-v1", -90.0),
    ):
        for seed in range(3):
            recipe = dataclasses.replace(RECIPE, agent=agent, env=env, seed=seed)
            start = 10.0 if level > 0 else -500.0
            means = np.linspace(start, level + 10 * seed, 4)
            put(tmp_path / "runs" / agent / env / str(seed), recipe, means)
    return tmp_path / "runs"


def report(*arguments):
    return main([str(argument) for argument in arguments])


def test_the_page_has_the_numbers_the_pictures_and_the_commands(runs, tmp_path, capsys):
    assert report(runs, "--out", tmp_path / "page", "--title", "Of today") == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page" / "results.md")
    text = (tmp_path / "page" / "results.md").read_text()
    assert text.startswith("# Of today\n")
    assert "12 runs, 2 environments" in text
    # 450, 460, 470: the mean of the middle half is that of the middle.
    row = (
        "| dqn | 3 | 460.0 | 450.0 to 470.0 | 450.0, 470.0 | 400 | 3 of 3 | 2,000 actor steps | 2 |"
    )
    assert row in text
    assert "| ppo | 3 | 390.0 | 380.0 to 400.0 | 380.0, 400.0 | 400 | 1 of 3 |" in text
    assert "## All environments" in text
    assert "for seed in 0 1 2; do troupe train ppo --env Acrobot-v1 " in text
    assert "Versions: python 3.10, jax 0.6.2." in text
    for name in ("returns", "curves", "profiles"):
        assert f"({name}.png)" in text
        assert (tmp_path / "page" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_of_other_speeds_have_one_curve_in_time(tmp_path):
    """Each evaluation stands at the median of its seconds, though no two seeds overlap."""
    for seed, slower in enumerate((1.0, 10.0, 100.0)):
        folder = put(tmp_path / str(seed), dataclasses.replace(RECIPE, seed=seed), [1.0, seed])
        rows = [
            {
                **dict.fromkeys(metrics.COUNTS, k),
                **{"kind": "evaluation", "train_seconds": slower * (k + 1), "mean": mean},
            }
            for k, mean in enumerate((1.0, seed))
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (entry,) = collect([tmp_path])
    for seed, (seconds, means) in enumerate(page._in_time(entry)):
        assert seconds.tolist() == [10.0, 20.0]
        assert means.tolist() == [1.0, seed]


def test_environments_are_put_together_on_a_scale(runs):
    entries = collect([runs])
    found = scales(entries)
    assert (found["CartPole-v1"].zero, found["CartPole-v1"].one) == (10.0, 400.0)
    assert found["Acrobot-v1"](np.array([-500.0, 400.0])).tolist() == [0.0, 1.0]
    dqn, ppo = together(entries, found)
    assert (dqn.name, ppo.name) == ("dqn", "ppo")
    np.testing.assert_allclose(dqn.scores[1], (np.array([450.0, 460.0, 470.0]) - 10) / 390)
    assert estimate(dqn.scores).low < estimate(dqn.scores).mean < estimate(dqn.scores).high


def test_other_settings_are_an_entry_of_their_own(tmp_path):
    for rate in (1e-3, 2e-3):
        recipe = dataclasses.replace(RECIPE, config={"learning_rate": rate})
        put(tmp_path / str(rate), recipe, [1.0, 2.0])
    names = [entry.name for entry in collect([tmp_path])]
    assert names == ["dqn, learning_rate 0.001", "dqn, learning_rate 0.002"]
    assert together(collect([tmp_path]), {"CartPole-v1": None}) == []


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("dqn", "CartPole-v1", seed=3, steps=50_000),
        Recipe("dqn", "CartPole-v1", {"hidden_sizes": (8, 8), "dueling": True}, steps=700),
        Recipe(
            "ppo",
            "Pendulum-v1",
            environment={"max_episode_steps": 50, "g": 9.8},
            mesh="data=2",
            schedule="batch:data",
            evaluation=Evaluation(every=10, episodes=3, target_return=-200.0, stop_at_target=True),
        ),
        Recipe("dqn", "CartPole-v1", launch="processes", roles={"actors": 4}),
    ],
)
def test_a_command_asks_for_what_the_run_was(recipe):
    config = json.loads(json.dumps(recipe.to_json()))
    line = again.command(config, [recipe.seed])
    assert line.startswith(f"troupe train {recipe.agent} --env {recipe.env} ")
    assert line.endswith(f" --seed {recipe.seed}")


def test_a_run_that_no_command_asks_for_has_none(tmp_path):
    config = RECIPE.to_json()
    assert again.command({**config, "python": {}}, [0]) is None
    other = dataclasses.replace(RECIPE, evaluation=Evaluation(num_envs=7))
    assert again.command(json.loads(json.dumps(other.to_json())), [0]) is None
    put(tmp_path / "run", other, [1.0])
    assert report(tmp_path / "run", "--out", tmp_path / "page") == 0
    assert (
        f"begun in Python, or settings changed): {tmp_path / 'run'}"
        in (tmp_path / "page" / "results.md").read_text()
    )


def test_mistakes_are_told_in_one_line(tmp_path, capsys):
    def refused(*arguments):
        assert report(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no run has ended in" in refused(empty, "--out", tmp_path / "page")
    assert "there is no folder" in refused(tmp_path / "none", "--out", tmp_path / "page")
    assert "--out" in refused(empty)
    (empty / "config.json").write_text("{}")
    assert "has not ended" in refused(empty, "--out", tmp_path / "page")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "result.json").write_text('{"score": 3}')
    assert "is not the result of a run" in refused(foreign, "--out", tmp_path / "page")
    (foreign / "result.json").write_text("{")
    assert "cannot read" in refused(foreign, "--out", tmp_path / "page")
    for name in ("one", "other"):
        put(tmp_path / name, RECIPE, [1.0])
    twice = refused(tmp_path / "one", tmp_path / "other", "--out", tmp_path / "page")
    assert "the same seed, 0" in twice
    assert not (tmp_path / "page").exists()
    # But one directory named twice is one run.
    assert report(tmp_path / "one", tmp_path / "one", "--out", tmp_path / "page") == 0
    assert "cannot write into" in refused(tmp_path / "one", "--out", foreign / "result.json")


def test_a_real_run_is_reported(tmp_path, tiny, capsys):
    config = [word for name, value in tiny().config.items() for word in (f"--config.{name}", value)]
    words = ["train", "dqn", "--env", "CartPole-v1", "--steps", 100, *config]
    assert troupe([str(word) for word in [*words, "--out", tmp_path / "run"]]) == 0
    assert report(tmp_path / "run", "--out", tmp_path / "page") == 0
    text = (tmp_path / "page" / "results.md").read_text()
    assert "1 run, 1 environment." in text
    assert "troupe train dqn --env CartPole-v1 --steps 100 " in text
    assert "no command" not in text
    assert "(times.png)" in text


def test_one_seed_has_no_interval(tmp_path):
    """There is nothing to draw from but itself: an interval would be of no width."""
    for agent, seeds in (("dqn", 1), ("ppo", 3)):
        for seed in range(seeds):
            recipe = dataclasses.replace(RECIPE, agent=agent, seed=seed)
            put(tmp_path / "runs" / agent / str(seed), recipe, [10.0, 450.0 + seed])
    assert report(tmp_path / "runs", "--out", tmp_path / "page") == 0
    text = (tmp_path / "page" / "results.md").read_text()
    assert "| dqn | 1 | 450.0 |  | 450.0, 450.0 |" in text
    assert "| ppo | 3 | 451.0 | 450.0 to 452.0 |" in text
    assert report(tmp_path / "runs" / "dqn", "--out", tmp_path / "alone") == 0
    text = (tmp_path / "alone" / "results.md").read_text()
    assert "| entry | seeds | interquartile mean | worst and best |" in text
