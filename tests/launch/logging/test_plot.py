"""Learning curves: which runs are one line, what it is called, and what is drawn."""

import json

import numpy as np
import pytest

from troupe.launch.errors import RequestError
from troupe.launch.logging import plot
from troupe.launch.logging.groups import group


def make_run(path, points=((100, 1), (200, 2)), env="E-v0", agent="a", **config):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"agent": agent, "env": env, **config}))
    rows = [
        {"kind": kind, "actor_steps": steps, name: value}
        for steps, value in points
        for kind, name in (("train", "return"), ("evaluation", "mean"))
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_mean_and_band_over_the_steps_that_all_curves_cover():
    curves = [
        (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0])),
        (np.array([5.0, 15.0, 25.0]), np.array([3.0, 13.0, 23.0])),
    ]
    steps, means, deviations = plot.mean_and_band(curves)
    np.testing.assert_array_equal(steps, [5, 10, 15, 20])
    np.testing.assert_allclose(means, [4, 9, 14, 19])
    np.testing.assert_allclose(deviations, [1, 1, 1, 1])


def test_curves_that_share_no_step_meet_at_the_end_of_the_shorter():
    steps, means, _ = plot.mean_and_band(
        [(np.array([1.0]), np.array([2.0])), (np.array([5.0]), np.array([4.0]))]
    )
    np.testing.assert_array_equal(steps, [1])
    np.testing.assert_array_equal(means, [3])


OTHERWISE = [
    ({"config": {"learning_rate": 0.01}}, "learning_rate 0.01"),
    ({"config": {"learning_rate": 0.001, "hidden_sizes": [8, 8]}}, "hidden_sizes 8,8"),
    ({"steps": 50_000}, "50,000 steps"),
    ({"launch": "threads"}, "threads"),
    ({"launch": "processes", "roles": {"actors": 4}}, "4 actors"),
    ({"mesh": "data=2", "schedule": "batch:data"}, "mesh data=2"),
    ({"training_environment": {"reward_clip": 1.0}}, "training_environment.reward_clip 1"),
    ({"evaluation": {"every": 5, "target_return": None}}, "evaluation.every 5"),
]


@pytest.mark.parametrize(("changed", "name"), OTHERWISE)
def test_whatever_differs_keeps_runs_apart_and_is_named(tmp_path, changed, name):
    usual = {
        "steps": 200,
        "config": {"learning_rate": 0.001},
        "evaluation": {"every": None, "target_return": None},
        "checkpointing": {"keep": 2},
    }
    runs = [make_run(tmp_path / str(seed), seed=seed, **usual) for seed in range(2)]
    runs += [make_run(tmp_path / f"other{seed}", seed=seed, **usual | changed) for seed in range(2)]
    first, second = group(runs)
    assert [len(one.runs) for one in (first, second)] == [2, 2]
    assert name in second.differences
    assert name not in first.differences


def test_seeds_checkpoints_and_targets_are_no_difference(tmp_path):
    runs = [
        make_run(
            tmp_path / str(seed),
            seed=seed,
            checkpointing={"keep": seed},
            evaluation={"target_return": 475.0 if seed else None},
        )
        for seed in range(3)
    ]
    (one,) = group([*runs, runs[0], f"{runs[0]}/../0"])
    assert len(one.runs) == 3
    assert one.differences == ()
    assert one.targets == (475.0,)


def test_what_an_old_run_does_not_say_is_the_default(tmp_path):
    old = make_run(tmp_path / "old", seed=0)
    new = {"launch": "one-process", "mesh": None, "schedule": None, "roles": {}}
    (one,) = group([old, make_run(tmp_path / "new", seed=1, **new)])
    assert len(one.runs) == 2


def test_agents_have_settings_of_their_own(tmp_path):
    runs = [
        make_run(tmp_path / "a", agent="a", config={"x": 1}),
        make_run(tmp_path / "b", agent="b", config={"y": 1}),
    ]
    assert [one.differences for one in group(runs)] == [(), ()]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures_of_one_run_and_of_several(tmp_path, count, ending):
    runs = [
        make_run(tmp_path / str(seed), [(100, seed), (200, 2 * seed)], seed=seed)
        for seed in range(count)
    ]
    path = plot.plot(runs, tmp_path / "deep" / f"curve.{ending}")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"a on E-v0" in content
        assert (b"one standard deviation" in content) == (count > 1)


def test_every_environment_is_a_panel_and_every_setting_a_line(tmp_path):
    evaluation = {"target_return": 1.5}
    runs = [
        make_run(tmp_path / f"{env}{rate}", env=env, config={"rate": rate}, evaluation=evaluation)
        for env in ("X-v0", "Y-v0")
        for rate in (0.1, 0.2)
    ]
    content = plot.plot(runs, tmp_path / "curve.svg").read_bytes()
    for word in (b"a on X-v0", b"a on Y-v0", b"rate 0.1", b"rate 0.2", b"target 1.5"):
        assert word in content
    assert b"standard deviation" not in content


def test_nothing_to_plot_yet(tmp_path):
    run = make_run(tmp_path / "run", [], evaluation={"target_return": 475.0})
    with pytest.raises(RequestError, match="no returns to plot yet"):
        plot.plot([run], tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_a_picture_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "run", [(1, 1)])
    for name in ("curve.xyz", "run/config.json/curve.png"):
        with pytest.raises(RequestError, match="cannot write the picture"):
            plot.plot([run], tmp_path / name)
