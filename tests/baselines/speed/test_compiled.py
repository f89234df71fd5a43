"""Benchmarks of compiled runs: what is timed, in which order, and what a failure leaves."""

import json
import pathlib
import sys
import textwrap
import types

import pytest

from troupe.baselines.speed.compiled import __main__ as command
from troupe.baselines.speed.compiled import cases, grid, memory, phases, rates
from troupe.launch import StopRun

SMALL = {
    "ppo": cases.ppo(4, 8, hidden_sizes=(8,)),
    "dqn": cases.CompiledCase(
        "dqn",
        {"hidden_sizes": (8,), "batch_size": 4, "min_replay_size": 16, "max_replay_size": 500},
    ),
}


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    fake = types.SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0] / 2)
    monkeypatch.setattr(rates, "time", fake)
    monkeypatch.setattr(memory, "time", fake)
    return now


def test_a_run_is_timed_once_all_of_it_is_compiled(clock):
    watch = rates.Watch(10.0)
    for at, steps, learned, saved in ((1, 5, 0, False), (2, 9, 1, True), (9, 20, 0, False)):
        clock[0] = at
        if saved:
            watch.on_checkpoint(pathlib.Path(), {})
        watch.on_metrics({"actor_steps": steps, "learner_steps": learned})
    assert watch.begun == (9, 1, 2, 1.0)
    assert watch.checkpoints == 0  # The first is compiled.
    clock[0] = 11
    watch.on_metrics({"actor_steps": 90, "learner_steps": 30})
    clock[0] = 12
    with pytest.raises(StopRun):
        watch.on_metrics({"actor_steps": 109, "learner_steps": 51})
    assert watch.newest == (109, 51, 12, 6.0)


def test_all_run_in_turn_and_ratios_are_of_one_round(monkeypatch):
    asked = []
    speeds = {"compiled": [400, 200], "one-process": [100, 25], "one by one": [50, 50]}
    speeds["purejaxrl"] = [200, 400]

    def run(kind, *_, one_by_one=False):
        who = "one by one" if one_by_one else kind
        asked.append(who)
        rate = speeds[who][asked.count(who) - 1]
        return {"env_steps_per_second": rate, "env_steps_per_cpu_second": rate}

    monkeypatch.setattr(rates, "measure", run)
    monkeypatch.setattr(rates, "measure_purejaxrl", lambda *_: run("purejaxrl"))
    found = rates.compare("ppo-4x128", 2, 1.0, ("python", "checkout"))
    assert asked == ["compiled", "one-process", "one by one", "purejaxrl"] * 2
    assert found["ratios"]["Gymnasium"]["env_steps_per_cpu_second"] == [4.0, 8.0]
    assert found["ratios"]["purejaxrl"]["env_steps_per_second"] == [2.0, 0.5]
    assert found["medians"]["compiled"]["env_steps_per_second"] == 300
    text = rates.table([found])
    assert "4.00-8.00" in text
    assert "0.50-2.00" in text
    # There is a peer of PPO alone.
    asked.clear()
    rates.compare("dqn-1", 1, 1.0, ("python", "checkout"))
    assert asked == ["compiled", "one-process", "one by one"]


PPO = """
    import jax
    import brax.envs
    import navix
    from brax.envs.wrappers.training import AutoResetWrapper, EpisodeWrapper

    def make_train(config):
        assert (config["NUM_ENVS"], config["NUM_STEPS"]) == (4, 128)

        def train(key):
            returns = jax.random.uniform(key, (config["TOTAL_TIMESTEPS"] // 512, 2))
            return {"metrics": {"returned_episode_returns": returns * 0 + 7}}

        return train
"""


def test_purejaxrl_runs_as_it_is_in_its_own_interpreter(tmp_path):
    path = tmp_path / "purejaxrl" / "ppo.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(PPO))
    case = cases.CASES["ppo-4x128"]
    found = rates.measure_purejaxrl(sys.executable, str(tmp_path), case, 1_100)
    assert found["env_steps"] == 1_024  # Whole updates.
    assert found["return"] == 7
    assert found["env_steps_per_cpu_second"] > 0
    path.write_text("raise RuntimeError('of its own')")
    with pytest.raises(ValueError, match=r"^purejaxrl with .* failed: RuntimeError: of its own$"):
        rates.measure_purejaxrl(sys.executable, str(tmp_path), case, 1_100)


def test_memory_is_read_at_times_and_compared_once_it_has_settled(clock, monkeypatch):
    sizes = iter([100.0, 300.0, 301.0, 302.0])
    monkeypatch.setattr(memory, "resident", lambda: next(sizes))
    readings = memory.Readings(100.0, every=30.0)

    def run(*_, **__):
        for at in (5, 20, 40, 60, 80):
            clock[0] = at
            readings.on_metrics({"actor_steps": at})
        clock[0] = 106
        with pytest.raises(StopRun):
            readings.on_metrics({"actor_steps": 106})
        readings.on_metrics({"actor_steps": 106})  # The row that ends a run.

    monkeypatch.setattr(memory, "Readings", lambda *_: readings)
    monkeypatch.setattr(memory.launch, "run", run)
    found = memory.watch(SMALL["ppo"], 100.0)
    assert [at for at, _, _ in found["readings"]] == [0, 35, 75, 101]
    assert found["growth"] == 2.0  # From 300 on, as it was after a quarter of the time.
    assert "+2.0 MiB" in memory.table(found)


def test_runs_come_first_then_one_seed_of_all_then_more():
    found = grid.cells(("a", "b"), (1_024, 4_096, 65_536), (1, 16, 256))
    assert found[0] == ("run", "a", 4_096, 1)
    assert [cell.what for cell in found].count("run") == 2
    assert all(cell.seeds == 1 for cell in found[:8])
    sizes = [cell.num_envs * cell.seeds for cell in found[8:]]
    assert sizes == sorted(sizes)
    assert max(sizes) <= grid.MOST_STREAMS


def test_cells_are_free_of_what_befalls_the_others(monkeypatch):
    monkeypatch.setattr(grid, "_LEAST_LEFT", 0.0)
    cells = [grid.Cell("loop", env, 2, 1) for env in ("jax:CartPole-v1", "jax:no", "jax:Catch-v0")]
    monkeypatch.setitem(
        grid._MEASURES, "loop", lambda cell, case: {"rate": 1} if "no" not in cell.env else 1 / 0
    )
    rows = list(grid.measured(cells, 100.0, 8))
    assert [row.get("rate") for row in rows] == [1, None, 1]
    assert rows[1]["failed"] == "ZeroDivisionError: division by zero"
    rows = list(grid.measured(cells, 0.0, 8))
    assert [row["left_out"] for row in rows] == ["no time left"] * 3


@pytest.mark.long
def test_a_loop_and_a_run_are_measured_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grid, "_SECONDS", 0.4)
    monkeypatch.setattr(grid, "RUNS", (8,))
    monkeypatch.setattr(rates, "CHECKPOINT_SECONDS", 0.2)
    file, png = tmp_path / "grid.jsonl", tmp_path / "grid.png"
    words = f"--grid {file} --tasks jax:CartPole-v1 --envs 8 --seeds 1 --rollout 4"
    assert command.main(words.split()) == 0
    run, loop = map(json.loads, file.read_text().splitlines())
    assert (run["what"], loop["what"], loop["num_envs"]) == ("run", "loop", 8)
    assert run["checkpoints"] >= 1
    for row in (run, loop):
        assert row["env_steps_per_second"] > 0, row
    assert command.main(["--picture", str(file), str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_the_parts_of_a_turn_add_up_to_the_whole(name, monkeypatch):
    monkeypatch.setattr(cases, "CASES", SMALL)
    monkeypatch.setattr(phases, "_WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(phases, "_TURNS", 16)
    found = phases.measure(name, 1, 0.05)
    assert sum(found["seconds"].values()) == pytest.approx(found["seconds_of_a_turn"])
    assert found["seconds"]["environment"] > 0
    assert name in phases.table([found])


def test_a_case_that_there_is_not_is_named(capsys):
    with pytest.raises(SystemExit):
        command.main(["--cases", "ppo-4x129"])
    assert "there is no case 'ppo-4x129'; there are ppo-4x128" in capsys.readouterr().err
