"""Answers in slots: those of one batch after another, whoever the neighbours are."""

import jax
import numpy as np
import pytest

from troupe.agents.generation import masks
from troupe.agents.generation.continuous import ContinuousBatch
from troupe.agents.generation.loop import generate
from troupe.agents.generation.sampling import Sampling, log_probs

from .tiny import END, PAD, VOCABULARY, answer_spec, decoder, keys, prompts

P, T = 6, 14
MODEL = decoder()
PARAMS = {"decoder": MODEL.init(jax.random.key(0)), "steps": np.int32(3)}
NEWER = {"decoder": MODEL.init(jax.random.key(1)), "steps": np.int32(4)}


def one_batch(prompt, of_rows, answer, params=PARAMS):
    run = jax.jit(
        lambda params: generate(MODEL, params["decoder"], prompt, of_rows, answer, Sampling())
    )
    return jax.tree.map(np.asarray, run(params))


def batch_of(answer, num_slots, prompt, of_rows):
    made = ContinuousBatch(MODEL, answer, Sampling(), num_slots, P)
    words = np.asarray(jax.random.key_data(of_rows))
    for name, (one, of_one) in enumerate(zip(prompt, words, strict=True)):
        made.add(name, one, of_one)
    return made


def finish(made, params=PARAMS, turns=500):
    found = {}
    for _ in range(turns):
        made.take(params)
        for one in made.turn():
            assert one.name not in found
            found[one.name] = one
        if made.is_idle:
            return found
    raise AssertionError("it does not end")


@pytest.mark.parametrize(("group", "num_slots"), [(1, 4), (3, 4), (3, 16), (4, 3)])
def test_answers_are_those_of_a_batch(group, num_slots):
    """More prompts than slots, and groups larger than all slots or divided among turns."""
    answer, prompt, of_rows = answer_spec((group, T)), prompts(7, P), keys(7, group)
    expected = one_batch(prompt, of_rows, answer)
    lengths = (expected.tokens != PAD).sum(-1)
    assert lengths.min() < lengths.max() == T
    made = batch_of(answer, num_slots, prompt, of_rows)
    found = finish(made)
    assert sorted(found) == [*range(7)]
    for name, one in found.items():
        np.testing.assert_array_equal(one.answers.tokens, expected.tokens[name])
        np.testing.assert_allclose(one.answers.log_probs, expected.log_probs[name], atol=1e-5)
        assert one.steps == 3
    assert made.tokens == lengths.sum()


def test_a_slot_takes_the_next_prompt_while_its_neighbours_go_on():
    """One answer of T tokens and several of two: these pass through the other slot."""
    grammar = np.full((T + 2, 18), -1, np.int32)
    grammar[0, 5] = T + 1  # Ends with the next token.
    grammar[0, 6] = 1  # Goes on to the last.
    grammar[[*range(1, T)], 6] = [*range(2, T + 1)]
    grammar[T, END] = grammar[T + 1, END] = T
    answer, prompt, of_rows = answer_spec((1, T), grammar), prompts(16, P), keys(16, 1)
    is_long = one_batch(prompt, of_rows, answer).tokens[:, 0, 0] == 6
    order = np.array([*np.flatnonzero(is_long)[:1], *np.flatnonzero(~is_long)[:5]])
    assert len(order) == 6
    made = batch_of(answer, 2, prompt[order], of_rows[order])
    found = finish(made)
    # A turn ends with each short answer; the last one with the long, as nothing waits.
    assert [*found] == [1, 2, 3, 4, 0, 5]
    assert made.turns == 5
    assert made.tokens == T + 2 * 5


def test_newer_parameters_draw_the_rest_of_an_answer():
    answer, prompt, of_rows = answer_spec((1, T)), prompts(4, P), keys(4, 1)
    older = one_batch(prompt, of_rows, answer)
    made = batch_of(answer, 4, prompt, of_rows)
    made.take(PARAMS)
    made._begin_some()
    found = finish(made, NEWER)
    assert all(one.steps == 3 for one in found.values())  # Of the oldest parameters.
    tokens, log_probs = (
        np.concatenate([found[name].answers[part] for name in range(4)]) for part in range(2)
    )
    np.testing.assert_array_equal(tokens[:, 0], older.tokens[:, 0, 0])
    assert (tokens != older.tokens[:, 0]).any()
    np.testing.assert_allclose(log_probs, mixed_log_probs(prompt, tokens, answer), atol=1e-5)


def mixed_log_probs(prompt, tokens, answer):
    """Those of newer parameters upon a prompt that older ones have read and begun to answer."""
    everything, count = np.concatenate([prompt, tokens], -1), len(prompt)
    is_answer = np.asarray(masks.answer_mask(tokens, PAD, END))
    is_token = np.concatenate([masks.prompt_mask(prompt, PAD), is_answer], -1)
    logits, cache = [], MODEL.empty_cache(count, P + T)
    for params, start, stop in ((PARAMS, 0, P), (NEWER, P, P + T)):
        part = everything[:, start:stop], is_token[:, start:stop]
        hidden, cache = MODEL.extend(params["decoder"], *part, cache, start)
        logits.append(MODEL.logits(params["decoder"], hidden))
    logits = np.concatenate(logits, 1)[:, P - 1 : -1]
    allowed = masks.allowed_along(answer, VOCABULARY, tokens)
    return np.where(is_answer, log_probs(logits, tokens, 1.0, allowed), 0.0)


def test_what_is_discarded_leaves_the_others_as_they_are():
    answer, prompt, of_rows = answer_spec((2, T)), prompts(5, P), keys(5, 2)
    expected = one_batch(prompt, of_rows, answer)
    made = batch_of(answer, 3, prompt, of_rows)
    made.take(PARAMS)
    made._begin_some()  # The second prompt has one answer of two begun, the others wait.
    for name in (1, 3):
        made.discard(name)
    found = finish(made)
    assert sorted(found) == [0, 2, 4]
    for name, one in found.items():
        np.testing.assert_array_equal(one.answers.tokens, expected.tokens[name])


def test_nothing_is_compiled_after_the_warm_up():
    answer, prompt, of_rows = answer_spec((3, T)), prompts(7, P), keys(7, 3)
    made = ContinuousBatch(MODEL, answer, Sampling(), 8, P)
    made.warm_up(PARAMS)
    programs = made._prefill, made._admit, made._advance
    sizes = [program._cache_size() for program in programs]
    for name, of_one in enumerate(np.asarray(jax.random.key_data(of_rows))):
        made.add(name, prompt[name], of_one)
    finish(made)
    assert [program._cache_size() for program in programs] == sizes
