"""Devices of actors and learners: named, or tried."""

import dataclasses

import jax
import pytest

from troupe import environments, launch
from troupe.agents.replay.items import ReplaySpec, Transitions
from troupe.launch import devices
from troupe.launch.factory import ComponentFactory
from troupe.launch.local import components


@pytest.fixture
def two(monkeypatch):
    """Takes two virtual devices of the CPU for an accelerator and the host."""
    found = dict(zip(("gpu", "cpu"), jax.devices()[:2], strict=True))
    monkeypatch.setattr(
        devices, "find", lambda name, who: found if name == "auto" else {name: found[name]}
    )
    return found


def make_factory(tiny, **fields):
    experiment = dataclasses.replace(tiny().experiment(), **fields)
    with components.make_environment(experiment, 0) as environment:
        spec = environments.make_spec(environment)
    return ComponentFactory(experiment, spec, experiment.builder.num_envs)


def test_the_real_policy_and_update_are_tried_on_every_device(tiny, two):
    factory = make_factory(tiny)
    replay = factory.replay(factory.builder.num_envs)
    samples = replay.sample_shapes(factory.builder.steps_per_dispatch)
    chosen = devices.choose(factory, samples, replay.spec)
    assert {chosen.actor, chosen.learner} <= set(two.values())
    assert chosen.note.startswith("devices: actor on ")
    assert " ms an action; " in chosen.note
    assert " ms a dispatch; " in chosen.note


@pytest.mark.parametrize(
    ("acting", "learning", "expected"),
    [
        ({"gpu": 3.0, "cpu": 1.0}, {"gpu": 1.0, "cpu": 9.0}, ("cpu", "gpu")),
        ({"gpu": 1.0, "cpu": 2.0}, {"gpu": 5.0, "cpu": 4.0}, ("gpu", "cpu")),
    ],
)
def test_the_quickest_are_kept(tiny, two, monkeypatch, acting, learning, expected):
    measured = iter([learning, acting])
    monkeypatch.setattr(devices, "_measure", lambda *_: next(measured))
    chosen = devices.choose(
        make_factory(tiny), (), ReplaySpec(Transitions(), batch_size=4, max_size=9)
    )
    assert (chosen.actor, chosen.learner) == tuple(two[name] for name in expected)


def test_a_device_on_which_it_does_not_run_is_left_out(two):
    def make(device):
        def call():
            if device == two["gpu"]:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

        return call

    assert list(devices._measure(two, make)) == ["cpu"]
    with pytest.raises(launch.RequestError, match=r"neither runs .*\(gpu: RESOURCE_EXHAUSTED"):
        devices._measure({"gpu": two["gpu"]}, make)


def test_nothing_is_tried_where_there_is_one_device(tiny, monkeypatch):
    monkeypatch.setattr(devices, "_measure", None)
    factory = make_factory(tiny)
    chosen = devices.choose(factory, (), ReplaySpec(Transitions(), batch_size=4, max_size=9))
    assert chosen == devices.ChosenDevices()
    assert chosen.to_json() == {"actor": "cpu", "learner": "cpu"}


@pytest.mark.parametrize("who", ["actor", "learner"])
def test_a_device_that_is_not_there_is_refused(tiny, who):
    factory = make_factory(tiny, **{f"{who}_device": "tpu"})
    with pytest.raises(launch.RequestError, match=f"the {who}'s device is tpu, and jax finds only"):
        devices.choose(factory, (), ReplaySpec(Transitions(), batch_size=4, max_size=9))
    with pytest.raises(launch.RequestError, match=f"the {who}'s device is 'abacus'"):
        make_factory(tiny, **{f"{who}_device": "abacus"})


def test_the_result_says_where_it_ran(tiny, tmp_path, two):
    result = launch.run(tiny(steps=60).experiment(), tmp_path / "run", progress=False)
    assert result.devices == {"actor": "cpu", "learner": "cpu"}
    assert "devices: actor on " in (tmp_path / "run" / "logs" / "main.log").read_text()
