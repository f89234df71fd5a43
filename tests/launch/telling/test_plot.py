"""Learning curves: what is drawn, from which rows."""

import json

import numpy as np
import pytest

from troupe.launch.errors import RequestError
from troupe.launch.telling import plot


def make_run(path, points, env="E-v0", agent="a"):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"agent": agent, "env": env}))
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


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures_of_one_run_and_of_several(tmp_path, count, ending):
    runs = [make_run(tmp_path / str(seed), [(100, seed), (200, 2 * seed)]) for seed in range(count)]
    path = plot.plot(runs, tmp_path / "deep" / f"curve.{ending}")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"a on E-v0" in content


def test_runs_of_two_environments_are_two_lines(tmp_path):
    runs = [make_run(tmp_path / env, [(100, 1), (200, 2)], env) for env in ("X-v0", "Y-v0")]
    content = plot.plot(runs, tmp_path / "curve.svg").read_bytes()
    assert b"a on X-v0" in content
    assert b"a on Y-v0" in content


def test_nothing_to_plot_yet(tmp_path):
    with pytest.raises(RequestError, match="no returns to plot yet"):
        plot.plot([make_run(tmp_path / "run", [])], tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_a_picture_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "run", [(1, 1)])
    for name in ("curve.xyz", "run/config.json/curve.png"):
        with pytest.raises(RequestError, match="cannot write the picture"):
            plot.plot([run], tmp_path / name)
