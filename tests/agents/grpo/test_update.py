"""GRPO's update against a twin that takes one answer at a time, without padding."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe import partitioning as pt
from troupe.agents.generation import likelihood
from troupe.agents.generation.groups import read_groups
from troupe.agents.generation.loop import generate
from troupe.agents.generation.sampling import Sampling
from troupe.agents.grpo import GRPOBuilder, GRPOConfig, networks, update
from troupe.agents.replay.items import Sample, SampleInfo, Sequence
from troupe.environments.specs import AnswerArray, EnvironmentSpec

PAD, END, V = 0, 1, 7
B, G, P, T = 4, 4, 3, 5
TINY = {"width": 16, "num_layers": 2, "num_heads": 2, "num_envs": 4, "batch_size": 4}
PROMPTS = jnp.array([[0, 2, 3], [0, 0, 4], [5, 6, 2], [0, 3, 3]], jnp.int32)
SOLUTIONS = jnp.array(
    [[3, 2, 1, 0, 0], [4, 1, 0, 0, 0], [2, 6, 5, 1, 0], [3, 3, 1, 0, 0]], jnp.int32
)
SCORES = jnp.array([[1, 0, 0, 1], [0.5, 0.5, 0.5, 0.5], [0, 0, 0.25, 1], [0, 1, 1, 1]], jnp.float32)
SETTINGS = {
    "as by default": {},
    "of the publication": {
        **{"normalize_advantages": True, "drop_equal_groups": False, "mean": "sequence"},
        **{"kl_cost": 0.1, "clip_high": 0.2},
    },
    "gspo": {"ratio": "sequence", "mean": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"loss": "cispo", "clip_low": 1.0, "max_importance": 2.0},
    "dr. grpo": {"mean": "length", "drop_equal_groups": False},
    "leave-one-out": {"loss": "reinforce", "baseline": "leave_one_out", "max_importance": 1.1},
    "cooler": {"temperature": 0.7},
}


def spec(vocabulary=V, group=G, length=T):
    answers = AnswerArray((group, length), vocabulary, pad=PAD, end=END)
    number, tokens = specs.Array((), np.float32), specs.Array((P,), np.int32)
    seen = {"prompt": tokens, "solution": tokens, "scores": specs.Array((group,), np.float32)}
    return EnvironmentSpec(seen, answers, number, number)


def make(**config):
    builder = GRPOBuilder(GRPOConfig(**{**TINY, **config}))
    found = builder.make_networks(spec())
    return builder.config, found, builder.make_update(found, spec())


def sampled(found, config, params, steps=0):
    """A batch of answers that these parameters draw, as a replay gives it."""
    keys = jax.random.split(jax.random.key(7), (B, G))
    sampling = Sampling(config.temperature)

    @jax.jit  # As a policy draws them: alone, operations round in other places.
    def draw(params):
        return generate(found.decoder, params, PROMPTS, keys, found.answer, sampling)

    answers = draw(params)

    def rows(x, at=0):
        """[B, 3, ...] with `x` in one row."""
        return jnp.zeros((B, 3, *x.shape[1:]), x.dtype).at[:, at].set(x)

    data = Sequence(
        {"prompt": rows(PROMPTS), "solution": rows(SOLUTIONS), "scores": rows(SCORES, 1)},
        rows(answers.tokens),
        jnp.zeros((B, 3)),
        jnp.zeros((B, 3)),
        jnp.tile(jnp.array([0, 2, 0], jnp.int32), (B, 1)),
        jnp.ones((B, 3)),
        {"log_probs": rows(answers.log_probs), "steps": rows(jnp.full((B,), steps, jnp.int32))},
    )
    return Sample(SampleInfo(None, jnp.ones(B), jnp.ones(B)), data)


def moved(params, size=0.05):
    """Parameters some way off."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    noise = [size * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, [x + n for x, n in zip(leaves, noise, strict=True)])


@functools.partial(jax.jit, static_argnums=0)
def table(decoder, params, prompt, tokens, temperature):
    """[B, G, T] of every token after those before it, by the whole of the logits."""
    rows = jnp.concatenate([jnp.repeat(prompt, G, 0), tokens.reshape(B * G, T)], 1)
    logits = decoder.apply(params, rows, jnp.cumsum(rows != PAD, 1) > 0)[:, P - 1 : -1]
    logits = (logits / temperature).at[..., PAD].set(-jnp.inf)
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), rows[:, P:, None], 2)
    return found.reshape(B, G, T)


def twin_loss(config, log_prob, reference, groups):
    """The loss in loops over answers, of which nothing is padded."""
    answers = []  # Of each that counts: the losses of its tokens.
    for b in range(B):
        scores = np.asarray(groups.score[b], np.float64)
        if config.drop_equal_groups and len({*scores.tolist()}) == 1:
            continue
        for g in range(G):
            others = np.delete(scores, g) if config.baseline == "leave_one_out" else scores
            gain = scores[g] - others.mean()
            if config.normalize_advantages:
                gain /= scores.std() + 1e-6
            answer = groups.tokens[b, g].tolist()
            size = answer.index(END) + 1 if END in answer else T
            new = log_prob[b, g, :size]
            sampler = groups.log_probs[b, g, :size]
            old = jax.lax.stop_gradient(new) if config.max_importance else sampler
            weight = jnp.ones(size)
            if config.max_importance:
                weight = jnp.minimum(jnp.exp(old - sampler), config.max_importance)
            log_ratio = new - old
            if config.ratio == "sequence":
                log_ratio = jnp.full(size, jnp.mean(log_ratio))
            low, high = 1 - config.clip_low, 1 + config.clip_high
            ratio = jnp.exp(log_ratio)
            if config.loss == "clip":
                each = -jnp.minimum(ratio * gain, jnp.clip(ratio, low, high) * gain)
            elif config.loss == "cispo":
                each = -jax.lax.stop_gradient(jnp.clip(ratio, low, high)) * gain * new
            else:
                each = -gain * new
            each = weight * each
            if config.kl_cost:
                away = reference[b, g, :size] - new
                each = each + config.kl_cost * (jnp.exp(away) - away - 1)
            answers.append(each)
    if config.mean == "token":
        return jnp.mean(jnp.concatenate(answers))
    if config.mean == "sequence":
        return jnp.mean(jnp.stack([jnp.mean(each) for each in answers]))
    return jnp.mean(jnp.stack([jnp.sum(each) / T for each in answers]))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_step_is_that_of_one_answer_at_a_time(settings):
    config, found, learning = make(max_gradient_norm=None, **settings)
    start = learning.init(jax.random.key(0))
    sample = sampled(found, config, start.params)
    state = start._replace(params=moved(start.params), steps=jnp.int32(3))
    after, output = jax.jit(learning.step)(state, sample)
    groups = jax.device_get(read_groups(sample.data))

    def of(params):
        given = found.decoder, params, groups.prompt, groups.tokens, config.temperature
        return table(*given)

    reference = of(start.params)
    log_prob, back = jax.vjp(of, state.params)
    loss = jax.jit(jax.value_and_grad(lambda x: twin_loss(config, x, reference, groups)))
    wanted, gradient = loss(log_prob)
    (gradients,) = back(gradient)
    np.testing.assert_allclose(output.metrics["loss"], wanted, rtol=1e-4, atol=1e-6)
    norm = math.sqrt(sum(float(jnp.sum(x * x)) for x in jax.tree.leaves(gradients)))
    np.testing.assert_allclose(output.metrics["gradient_norm"], norm, rtol=1e-3)
    # Adam's first moment is a tenth of the gradient.
    for mine, theirs in zip(
        jax.tree.leaves(after.optimizer.mu), jax.tree.leaves(gradients), strict=True
    ):
        np.testing.assert_allclose(mine, 0.1 * theirs, rtol=2e-3, atol=1e-6)
    assert output.metrics["ratio_error"] == 0  # None of these parameters.
    assert output.metrics["equal_groups"] == 0.25


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_learner_and_sampler_of_the_same_parameters_agree(dtype):
    config, found, learning = make(dtype=dtype)
    state = learning.init(jax.random.key(0))
    state = state._replace(params=moved(state.params, 0.3))
    _, output = jax.jit(learning.step)(state, sampled(found, config, state.params))
    metrics = {name: float(value) for name, value in output.metrics.items()}
    assert metrics["ratio_error"] <= update.TOLERANCES[dtype]
    assert not learning.remarks(metrics)


def test_a_ratio_that_is_off_is_told_with_how_much_and_kept():
    config, found, learning = make()
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, moved(state.params))
    state, output = jax.jit(learning.step)(state, sample)
    metrics = {name: float(value) for name, value in output.metrics.items()}
    error = metrics["ratio_error"]
    assert error > 1e-2
    assert f"off 1 by {error:.1e}" in learning.remarks(metrics)["ratio"]
    # The next batch is of older parameters, and says nothing of it.
    _, output = jax.jit(learning.step)(state, sample)
    assert float(output.metrics["ratio_error"]) == error


def test_groups_too_old_weigh_nothing_and_are_counted():
    config, found, learning = make(max_staleness=2)
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, state.params)
    steps = sample.data.extras["steps"].at[0, 0].set(3)  # The others are of step 0.
    sample = sample._replace(
        data=sample.data._replace(extras={**sample.data.extras, "steps": steps})
    )
    _, output = jax.jit(learning.step)(state._replace(steps=jnp.int32(3)), sample)
    assert output.metrics["stale_groups"] == 3
    only = jax.tree.map(lambda x: x[:1], sample.data)
    _, alone = jax.jit(learning.step)(state._replace(steps=jnp.int32(3)), Sample(None, only))
    np.testing.assert_allclose(output.metrics["loss"], alone.metrics["loss"], rtol=1e-5, atol=1e-7)
    norms = output.metrics["gradient_norm"], alone.metrics["gradient_norm"]
    np.testing.assert_allclose(*norms, rtol=1e-4)


def test_groups_all_equal_for_long_are_told_with_what_to_change():
    config, found, learning = make()
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, state.params)
    equal = sample._replace(
        data=sample.data._replace(
            observation={**sample.data.observation, "scores": jnp.ones((B, 3, G))}
        )
    )
    state = state._replace(equal_steps=jnp.int32(update.LONG - 2))
    told = []
    for batch in (equal, equal, sample, equal):
        state, output = jax.jit(learning.step)(state, batch)
        metrics = {name: float(value) for name, value in output.metrics.items()}
        told.append("equal" in learning.remarks(metrics))
    assert told == [False, True, False, False]
    assert "--env.answers" in learning.remarks({"equal_steps": update.LONG})["equal"]


def test_imitation_makes_solutions_likely_and_moves_the_reference():
    config, found, learning = make(supervised_steps=30, supervised_learning_rate=1e-2, kl_cost=0.1)
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, state.params)
    step, losses = jax.jit(learning.step), []
    for _ in range(30):
        state, output = step(state, sample)
        losses.append(float(output.metrics["loss"]))
        assert output.metrics["supervised"] == 1
    answers = [len(row[row != PAD]) for row in np.asarray(SOLUTIONS)]
    assert float(output.metrics["answer_length"]) == np.mean(answers)
    assert losses[-1] < 0.2 * losses[0]
    before = jax.tree.map(np.array, state.params)
    np.testing.assert_array_equal(state.reference["embedding"], before["embedding"])
    state, output = step(state, sampled(found, config, state.params, steps=30))
    assert output.metrics["supervised"] == 0
    assert output.metrics["ratio_error"] < 1e-5
    np.testing.assert_array_equal(state.reference["embedding"], before["embedding"])
    # Answers of before were solutions, and are not reinforced.
    _, output = step(state, sample)
    assert output.metrics["loss"] == 0


def test_prompts_without_solutions_are_told():
    config, found, learning = make(supervised_steps=30)
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, state.params)
    observation = {**sample.data.observation, "solution": jnp.zeros((B, 3, T), jnp.int32)}
    sample = sample._replace(data=sample.data._replace(observation=observation))
    _, output = jax.jit(learning.step)(state, sample)
    metrics = {name: float(value) for name, value in output.metrics.items()}
    assert "solution(prompt)" in learning.remarks(metrics)["solutions"]


def test_several_passes_begin_where_the_last_ended():
    config, found, learning = make(num_passes=3, max_importance=2.0)
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, state.params)
    after, output = jax.jit(learning.step)(state, sample)
    assert int(after.optimizer.count) == 3
    assert int(after.steps) == 1
    assert output.metrics["kl"] > 0  # Of the third, after two.
    assert output.metrics["ratio_error"] < 1e-5  # Of the first.


def test_the_probabilities_of_a_large_vocabulary_are_taken_in_chunks(monkeypatch):
    """With the same numbers and gradients, and memory of one chunk's logits."""
    config = GRPOConfig(**TINY)
    found = networks.make_networks(spec(vocabulary=4_096, length=32), config)
    params = found.decoder.init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (B, G, 32), 2, 4_096)

    def loss(params):
        return likelihood.log_probs(*found, params, PROMPTS, tokens, 1.0)[0].sum()

    def compiled():
        return jax.jit(jax.value_and_grad(loss)).lower(params).compile()

    whole = compiled()
    monkeypatch.setattr(likelihood, "MOST_LOGITS", 4 * B * G * 4_096)
    chunks = compiled()
    for mine, theirs in zip(
        jax.tree.leaves(chunks(params)), jax.tree.leaves(whole(params)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    logits = 4 * B * G * 32 * 4_096  # Bytes.
    sizes = [one.memory_analysis().temp_size_in_bytes for one in (whole, chunks)]
    assert sizes[0] > logits
    assert sizes[1] < 0.3 * sizes[0]


@pytest.mark.long
@pytest.mark.parametrize("settings", ["as by default", "of the publication"])
def test_a_mesh_learns_what_one_device_does(settings):
    config, found, learning = make(supervised_steps=1, **SETTINGS[settings])
    state = learning.init(jax.random.key(0))
    sample = sampled(found, config, state.params, steps=1)
    schedule = pt.parse_schedule("batch:data,megatron:model")
    step = pt.partition(
        lambda *args: learning.step(*args), pt.Mesh({"data": 2, "model": 2}), schedule
    )
    alone = jax.jit(learning.step)
    for _ in range(2):  # One that imitates, one that reinforces.
        wanted, theirs = alone(state, sample)
        got, mine = step(state, sample)
        np.testing.assert_allclose(
            mine.metrics["loss"], theirs.metrics["loss"], rtol=1e-4, atol=1e-6
        )
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)
        state = wanted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_heads": 3}, "width must be a multiple of 2 num_heads"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads"),
        ({"weights": "folder", "preset": "llama-8b"}, "give one of the two"),
        ({"num_envs": 256, "batch_size": 16}, "are 15 gradient steps old"),
        ({"steps_per_dispatch": 10}, "raise max_staleness"),
        ({"discount": 0.99}, "discount is 0.99"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be above 0.0"),
        ({"loss": "clipped"}, "must be one of clip, cispo, reinforce"),
    ],
)
def test_settings_that_cannot_be_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        GRPOConfig(**values)


def test_the_decoder_has_the_sizes_of_the_config():
    config = GRPOConfig(width=32, num_heads=4, num_kv_heads=2, hidden=48, dtype="bfloat16")
    sizes = networks.make_networks(spec(), config).decoder.config
    wanted = {"vocabulary": V, "num_kv_heads": 2, "head_width": 8, "hidden": 48}
    assert {name: getattr(sizes, name) for name in wanted} == wanted
    assert sizes.compute_dtype == "bfloat16"
    assert dataclasses.asdict(sizes)["num_layers"] == config.num_layers
