"""The learner: the same learning however it is dispatched, saved and restored."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents import SGDLearner, Update, UpdateOutput
from troupe.agents.replay.items import Sample, SampleInfo


def make_update():
    """Gradient descent on a line, with a key in its state."""

    def init(key):
        return {"w": jnp.ones(3), "key": key}

    def step(state, sample):
        key, sub = jax.random.split(state["key"])
        x, y = sample.data
        noise = 0.01 * jax.random.normal(sub, (3,))
        loss = lambda w: jnp.mean((x @ w - y) ** 2)  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(state["w"])
        priorities = jnp.abs(x @ state["w"] - y)
        new = {"w": state["w"] - 0.1 * gradient + noise, "key": key}
        return new, UpdateOutput({"loss": value}, priorities)

    return Update(init, step, lambda state: {"policy": state["w"]})


def batches(k):
    """Batches [k, B, ...] of one endless stream of batches."""
    rng = np.random.default_rng(0)
    for n in itertools.count():
        x = rng.normal(size=(k, 4, 3)).astype(np.float32)
        keys = np.arange(4 * k).reshape(k, 4) + 4 * k * n
        info = SampleInfo(keys, np.full((k, 4), 0.25, np.float32), np.full((k, 4), 4, np.float32))
        yield Sample(info, (x, 3 * x.sum(-1)))


def make(k=1, **arguments):
    return SGDLearner(
        make_update(), batches(k), jax.random.key(1), steps_per_dispatch=k, **arguments
    )


def test_fused_steps_learn_what_single_steps_learn():
    single, fused = make(1), make(4)
    single.run(8)
    fused.run(2)
    assert single.steps == fused.steps == 8
    np.testing.assert_allclose(
        single.get_variables(["policy"])[0], fused.get_variables(["policy"])[0], rtol=1e-6
    )


def test_it_learns():
    learner = make(10)
    learner.step()
    before = learner.metrics()["loss"]
    learner.run(20)
    assert learner.metrics()["loss"] < 0.1 * before


@pytest.mark.parametrize("k", [1, 2])
def test_numbers_of_python_in_a_state_do_not_compile_it_again(k):
    def init(key):
        return {"w": jnp.ones(3), "made": jnp.full((), 0.0), "each": jnp.zeros(()), "key": key}

    def step(state, sample):
        x, y = sample.data
        w = state["w"] - 0.1 * jnp.mean((x @ state["w"] - y)[:, None] * x, axis=0)
        made, each = state["made"] + w[0], jnp.where(w[0] > 0, 1.0, 0.0)
        assert not any(state[name].weak_type for name in ("made", "each"))
        return {**state, "w": w, "made": made, "each": each}, UpdateOutput({"w": w[0]})

    update = Update(init, step, lambda state: {"policy": state["w"]})
    learner = SGDLearner(update, batches(k), jax.random.key(1), steps_per_dispatch=k)
    assert not any(learner.state[name].weak_type for name in ("made", "each"))
    learner.step()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "compile" in event else None
    )
    try:
        learner.run(3)
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compiled
    assert learner.steps == 4 * k


def test_variables_outlive_the_state_that_was_donated():
    learner = make(1)
    versions = [learner.version]
    held = learner.get_variables(["policy"])
    for _ in range(3):
        learner.step()
        held += learner.get_variables(["policy"])
        versions.append(learner.version)
    assert versions == [0, 1, 2, 3]
    values = [np.asarray(w).tolist() for w in held]
    assert len({tuple(value) for value in values}) == 4


def test_priorities_go_back_with_the_keys_of_their_items():
    written = []
    learner = make(2, write_priorities=lambda keys, p: written.append((keys.copy(), p)))
    learner.run(2)
    np.testing.assert_array_equal(written[1][0], np.arange(8, 16).reshape(2, 4))
    assert written[0][1].shape == (2, 4)


def test_a_saved_learner_goes_on_bit_for_bit():
    learner = make(2)
    learner.run(3)
    saved = learner.save()
    assert all(isinstance(leaf, np.ndarray | np.integer) for leaf in jax.tree.leaves(saved))
    learner.run(3)
    other = make(2)
    other.restore(saved)
    assert other.steps == 6
    stream = batches(2)
    for _ in range(3):
        next(stream)
    other._samples = stream
    other.run(3)
    for a, b in zip(jax.tree.leaves(learner.save()), jax.tree.leaves(other.save()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_state_of_another_shape_is_refused():
    learner = make(1)
    saved = learner.save()
    saved["state"]["w"] = np.ones(4, np.float32)
    with pytest.raises(ValueError, match=r"\['w'\] is float32\[4\]; this agent's is float32\[3\]"):
        learner.restore(saved)


def test_unknown_variables_are_named():
    with pytest.raises(KeyError, match="critic"):
        make(1).get_variables(["critic"])
