"""Decoders: cached decoding is the whole forward pass, attention NumPy's, partitioned or not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import troupe.partitioning as pt
from troupe.agents.networks import decoder as decoder_lib

BATCH, LENGTH = 4, 12

TINY = decoder_lib.DecoderConfig(
    vocabulary=31, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_width=8, hidden=24
)
#: Of each family what the other has not.
LLAMA = dataclasses.replace(
    TINY, tied=False, rope_scaling=decoder_lib.RotaryScaling(factor=8.0, first_context=64)
)
QWEN3 = dataclasses.replace(TINY, qk_norm=True)
FAMILIES = pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])


def make(config, seed=0):
    decoder = decoder_lib.Decoder(config)
    params = decoder.init(jax.random.key(seed))
    # Norms that are not one, so that one left out is found.
    return decoder, jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.shape[-1])), params)


def make_rows(seed=0):
    """Rows padded left and right, each by another number of columns."""
    tokens = jax.random.randint(jax.random.key(seed), (BATCH, LENGTH), 0, TINY.vocabulary)
    columns, rows = jnp.arange(LENGTH), jnp.arange(BATCH)[:, None]
    return tokens, (columns >= rows) & (columns < LENGTH - rows % 2)


@FAMILIES
def test_padding_changes_no_logits_of_tokens(config):
    decoder, params = make(config)
    tokens, is_token = make_rows()
    logits = decoder.apply(params, tokens, is_token)
    for row in range(BATCH):
        alone = tokens[row, is_token[row]][None]
        expected = decoder.apply(params, alone, jnp.ones(alone.shape, bool))
        np.testing.assert_allclose(logits[row, is_token[row]], expected[0], atol=1e-5)


@FAMILIES
@pytest.mark.parametrize("apart", [False, True], ids=["stacked", "apart"])
def test_cached_decoding_is_the_whole_forward_pass(config, apart):
    decoder, params = make(config)
    tokens, is_token = make_rows()
    expected = decoder.hidden(params, tokens, is_token)
    extend = jax.jit(decoder.extend)
    prefill, cache = 5, decoder.empty_cache(BATCH, LENGTH + 3, apart)
    params = decoder.apart(params) if apart else params
    hidden, cache = extend(params, tokens[:, :prefill], is_token[:, :prefill], cache, 0)
    found = [hidden]
    for t in range(prefill, LENGTH):
        hidden, cache = extend(params, tokens[:, t : t + 1], is_token[:, t : t + 1], cache, t)
        found.append(hidden)
    whole = jnp.concatenate(found, axis=1)
    np.testing.assert_allclose(whole[is_token], expected[is_token], atol=1e-5)


@pytest.mark.parametrize("apart", [False, True], ids=["stacked", "apart"])
def test_rows_have_columns_of_their_own_and_begin_anew(apart):
    decoder, params = make(LLAMA)
    tokens, is_token = make_rows()
    expected = decoder.hidden(params, tokens, is_token)
    params = decoder.apart(params) if apart else params
    extend = jax.jit(decoder.extend)
    # What rows held before is written over: another text, longer than where they begin anew.
    other, all_true = make_rows(seed=1)[0], jnp.ones((BATCH, LENGTH), bool)
    cache = decoder.empty_cache(BATCH, LENGTH + 8, apart)
    cache = extend(params, other, all_true, cache, 0)[1]
    at = jnp.zeros(BATCH, jnp.int32)
    seen = {row: [] for row in range(BATCH)}
    # Row r takes r + 1 tokens a turn: so their columns part.
    while int(at.min()) < LENGTH:
        for row in range(BATCH):
            stop = min(int(at[row]) + row + 1, LENGTH)
            for t in range(int(at[row]), stop):
                one = jnp.where(jnp.arange(BATCH)[:, None] == row, tokens[:, t : t + 1], 0)
                mine = is_token[:, t : t + 1] & (jnp.arange(BATCH)[:, None] == row)
                hidden, cache = extend(params, one, mine, cache, at)
                seen[row].append(hidden[row, 0])
                at = at.at[row].add(1)
    for row in range(BATCH):
        mask = np.asarray(is_token[row])
        np.testing.assert_allclose(jnp.stack(seen[row])[mask], expected[row, mask], atol=1e-5)


def test_grouped_queries_are_those_of_repeated_keys():
    rng = np.random.default_rng(0)
    batch, queries, columns, heads, groups, width = 2, 3, 5, 2, 3, 4
    query = rng.normal(size=(batch, queries, heads * groups, width)).astype(np.float32)
    keys, values = rng.normal(size=(2, batch, heads, columns, width)).astype(np.float32)
    visible = rng.random((batch, queries, columns)) < 0.7
    visible[..., 0] = True
    found = decoder_lib._attend(query, keys, values, visible)
    expected = np.zeros((batch, queries, heads * groups, width))
    for b in range(batch):
        for t in range(queries):
            for n in range(heads * groups):
                scores = keys[b, n // groups] @ query[b, t, n] / np.sqrt(width)
                weights = np.where(visible[b, t], np.exp(scores), 0.0)
                expected[b, t, n] = weights / weights.sum() @ values[b, n // groups]
    np.testing.assert_allclose(found, expected.reshape(batch, queries, -1), atol=1e-6)


def test_bfloat16_is_computed_in_and_logits_are_float32():
    decoder, params = make(LLAMA)
    half = decoder_lib.Decoder(dataclasses.replace(LLAMA, compute_dtype="bfloat16"))
    tokens, is_token = make_rows()
    assert half.hidden(params, tokens, is_token).dtype == jnp.bfloat16
    assert half.empty_cache(1, 2).keys.dtype == jnp.bfloat16
    dtypes = {name: x.dtype for name, x in half.apart(params)["layers"][0].items()}
    assert dtypes["query"] == jnp.bfloat16
    assert dtypes["mlp_norm"] == jnp.float32
    logits = half.apply(params, tokens, is_token)
    assert logits.dtype == jnp.float32
    expected = decoder.apply(params, tokens, is_token)
    np.testing.assert_allclose(logits[is_token], expected[is_token], atol=0.1)
    # Not rounded once more behind the last product.
    assert np.any(np.asarray(logits) != np.asarray(logits.astype(jnp.bfloat16), np.float32))


@pytest.mark.parametrize("apart", [False, True], ids=["stacked", "apart"])
def test_bfloat16_is_rounded_alike_by_learner_and_sampler(apart):
    """But for sums in another order: XLA leaves roundings out where it may, and must not here."""
    decoder, params = make(dataclasses.replace(QWEN3, width=64, compute_dtype="bfloat16"))
    tokens = jax.random.randint(jax.random.key(0), (2, 48), 0, QWEN3.vocabulary)
    is_token = jnp.ones(tokens.shape, bool)
    expected = jax.jit(decoder.hidden)(params, tokens, is_token)
    extend, cache = jax.jit(decoder.extend), decoder.empty_cache(2, 48, apart)
    params = decoder.apart(params) if apart else params
    found = []
    for begin, end in ((0, 32), *((t, t + 1) for t in range(32, 48))):
        given = tokens[:, begin:end], is_token[:, begin:end]
        hidden, cache = extend(params, *given, cache, begin)
        found.append(hidden)
    assert np.mean(np.asarray(jnp.concatenate(found, axis=1) != expected)) < 0.05


def test_layers_are_computed_anew_with_the_same_gradients():
    decoder, params = make(QWEN3)
    anew = decoder_lib.Decoder(dataclasses.replace(QWEN3, rematerialize=True))
    tokens, is_token = make_rows()

    def gradients(decoder):
        return jax.grad(lambda p: jnp.sum(decoder.hidden(p, tokens, is_token) ** 2))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4),
        gradients(anew),
        gradients(decoder),
    )


def test_partitioned_logits_and_steps_are_those_of_one_device():
    """Every matrix is in shares on both axes: structure is found inside of the scan."""
    decoder, params = make(dataclasses.replace(LLAMA, vocabulary=32, qk_norm=True))
    tokens = jax.random.randint(jax.random.key(0), (8, LENGTH), 0, 32)
    batch = {"tokens": tokens, "is_token": jnp.arange(LENGTH) >= jnp.arange(8)[:, None]}

    def update(state, batch):
        def loss(params):
            logits = decoder.apply(params, batch["tokens"], batch["is_token"])
            log_probs = jax.nn.log_softmax(logits[:, :-1])
            chosen = jnp.take_along_axis(log_probs, batch["tokens"][:, 1:, None], axis=-1)[..., 0]
            return -jnp.sum(jnp.where(batch["is_token"][:, :-1], chosen, 0.0)), logits

        gradients, logits = jax.grad(loss, has_aux=True)(state)
        return jax.tree.map(lambda p, g: p - 0.01 * g, state, gradients), logits

    mesh = pt.parse_mesh("data=4,model=2")
    schedule = pt.parse_schedule("batch:data,megatron:model,zero3:data")
    step = pt.partition(update, mesh, schedule, donate=("state",))
    layers = step.plan(params, batch).input_shardings[0]["layers"]
    for name, spec in layers.items():
        if not name.endswith("norm"):
            assert {"model", "data"} == set(jax.tree.leaves(tuple(spec))), name
    expected = jax.jit(update)(params, batch)
    found = step(jax.tree.map(jnp.copy, params), batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.parametrize("at", [0, 3, None], ids=["begin", "one column", "a column each"])
def test_partitioned_cache_is_in_shares_of_rows_and_heads(at):
    decoder, params = make(LLAMA)
    tokens, is_token = make_rows()
    batch = {"tokens": tokens[:, :2], "is_token": is_token[:, :2]}
    if at is None:
        batch["at"] = jnp.arange(BATCH)
    cache = decoder.empty_cache(BATCH, LENGTH)
    cache = decoder.extend(params, tokens, is_token, cache, 0)[1]

    def decode(state, batch):
        hidden, cache = decoder.extend(
            state["params"],
            batch["tokens"],
            batch["is_token"],
            state["cache"],
            batch["at"] if at is None else at,
        )
        return {"params": state["params"], "cache": cache}, hidden

    mesh = pt.parse_mesh("data=4,model=2")
    step = pt.partition(decode, mesh, pt.parse_schedule("batch:data,megatron:model"))
    state = {"params": params, "cache": cache}
    spec = step.plan(state, batch).input_shardings[0]["cache"].keys
    assert tuple(spec)[1:3] == ("data", "model")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        step(state, batch),
        jax.jit(decode)(state, batch),
    )


@pytest.mark.parametrize("apart", [False, True], ids=["stacked", "apart"])
def test_partitioned_policies_decode_in_shares(apart):
    """As a sampler runs: parameters are read and not given back, tokens are drawn in a loop."""
    decoder, params = make(dataclasses.replace(LLAMA, num_layers=4))
    tokens, is_token = make_rows()

    def act(params, observation):
        weights = decoder.apart(params) if apart else params
        cache = decoder.empty_cache(BATCH, LENGTH + 4, apart)
        given = observation["tokens"], observation["is_token"]
        hidden, cache = decoder.extend(weights, *given, cache, 0)

        def turn(t, carry):
            drawn, cache = carry
            one = drawn[:, None]
            hidden, cache = decoder.extend(weights, one, one >= 0, cache, LENGTH + t)
            return jnp.argmax(decoder.logits(weights, hidden[:, 0]), axis=-1), cache

        drawn = jnp.argmax(decoder.logits(weights, hidden[:, -1]), axis=-1)
        drawn, cache = jax.lax.fori_loop(0, 4, turn, (drawn, cache))
        return drawn, cache.keys[-1]

    observation = {"tokens": tokens, "is_token": is_token.at[:, -1].set(True)}
    mesh = pt.parse_mesh("data=2,model=2")
    schedule = pt.parse_schedule("batch:data,megatron:model")
    step = pt.partition(act, mesh, schedule, weights=("params",))
    specs, fed = step.plan(params, observation).input_shardings
    assert fed["tokens"] == jax.sharding.PartitionSpec("data")
    for name, spec in specs["layers"].items():
        assert ("model" in spec) == (not name.endswith("norm")), name
        assert "data" not in spec
    drawn, keys = step(params, observation)
    expected, of_one = jax.jit(act)(params, observation)
    np.testing.assert_array_equal(drawn, expected)
    np.testing.assert_allclose(keys, of_one, atol=1e-5)


def test_init_has_the_shapes_and_the_number_of_parameters():
    for config in (LLAMA, QWEN3):
        params = decoder_lib.Decoder(config).init(jax.random.key(0))
        assert jax.tree.map(jnp.shape, params) == decoder_lib.shapes(config)
        count = sum(x.size for x in jax.tree.leaves(params))
        assert count == decoder_lib.num_parameters(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads=4 is no multiple of num_kv_heads=3"),
        ({"head_width": 7}, "head_width=7 is odd"),
        ({"compute_dtype": "float8"}, "compute_dtype='float8'; it is one of float32, bfloat16"),
        ({"num_layers": 0}, "num_layers=0; choose at least 1"),
    ],
)
def test_bad_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **changes)
