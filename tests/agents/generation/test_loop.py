"""Answers drawn token by token, against the whole forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.generation import masks
from troupe.agents.generation.loop import generate
from troupe.agents.generation.sampling import Sampling

from .tiny import (
    END,
    PAD,
    TOKENS,
    VOCABULARY,
    answer_spec,
    decoder,
    keys,
    prompts,
    whole_log_probs,
    whole_logits,
)

MODEL = decoder()
PARAMS = MODEL.init(jax.random.key(0))
SHARP = jax.tree.map(lambda x: x * 3.0, PARAMS)
"""Of which the answers are less alike."""


def answers(prompt, keys, answer, sampling=None, model=MODEL, params=PARAMS):
    def run(params, prompt, keys):
        return generate(model, params, prompt, keys, answer, sampling or Sampling())

    return jax.tree.map(np.asarray, jax.jit(run)(params, prompt, keys))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("dtype", "width", "tolerance"),
    [("float32", 32, 1e-5), ("bfloat16", 32, 1e-3), ("bfloat16", 128, 1e-3)],
)
def test_log_probabilities_are_those_of_the_whole_forward(dtype, width, tolerance, temperature):
    model = decoder(compute_dtype=dtype, width=width, hidden=2 * width, head_width=width // 4)
    answer, prompt = answer_spec((3, 12)), prompts()
    params = model.init(jax.random.key(0))
    found = answers(prompt, keys(5, 3), answer, Sampling(temperature), model, params)
    assert found.tokens.shape == (5, 3, 12)
    assert found.tokens.dtype == np.int32
    expected = whole_log_probs(model, params, prompt, found.tokens, answer, temperature)
    np.testing.assert_allclose(found.log_probs, expected, atol=tolerance)
    assert (found.log_probs < -0.1).any()


def test_answers_end_once_and_are_padded():
    found = answers(prompts(), keys(5, 3), answer_spec((3, 40)))
    ended = (found.tokens == END).any(-1)
    assert ended.any()
    is_token = np.asarray(masks.answer_mask(found.tokens, PAD, END))
    assert (found.tokens[~is_token] == PAD).all()
    assert (found.log_probs[~is_token] == 0).all()
    assert (found.tokens[is_token] != PAD).all()
    assert (found.tokens < TOKENS).all()
    assert ((found.tokens == END).sum(-1) == ended).all()


def test_the_greedy_answer_is_the_likeliest_token_step_by_step():
    answer, prompt = answer_spec((2, 10)), prompts()
    found = answers(prompt, keys(5, 2), answer, Sampling(0), params=SHARP)
    np.testing.assert_array_equal(found.tokens[:, 0], found.tokens[:, 1])
    logits, is_token = whole_logits(MODEL, SHARP, prompt, found.tokens)
    likeliest = np.where(masks.possible(answer, VOCABULARY), logits, -np.inf).argmax(-1)
    np.testing.assert_array_equal(found.tokens[is_token], likeliest[is_token])
    assert len(np.unique(found.tokens)) > 3


def test_an_answer_depends_on_its_prompt_and_key_alone():
    answer, prompt, of_rows = answer_spec((3, 8)), prompts(), keys(5, 3)
    found = answers(prompt, of_rows, answer)
    for rows in ([2], [4, 0], [1, 1, 3]):
        part = answers(prompt[rows], of_rows[jnp.array(rows)], answer)
        np.testing.assert_array_equal(part.tokens, found.tokens[rows])
        np.testing.assert_allclose(part.log_probs, found.log_probs[rows], atol=1e-5)
    # One answer alone is that of its place in a group.
    alone = answers(prompt, of_rows[:, 2:], answer_spec((1, 8)))
    np.testing.assert_array_equal(alone.tokens[:, 0], found.tokens[:, 2])


def test_more_padding_changes_nothing():
    answer, prompt, of_rows = answer_spec((2, 8)), prompts(), keys(5, 2)
    wider = np.pad(prompt, [(0, 0), (4, 0)], constant_values=PAD)
    found, same = answers(prompt, of_rows, answer), answers(wider, of_rows, answer)
    np.testing.assert_array_equal(found.tokens, same.tokens)
    np.testing.assert_allclose(found.log_probs, same.log_probs, atol=1e-5)


def test_a_prompt_of_padding_has_no_answer():
    prompt = prompts()
    prompt[[1, 3]] = PAD
    found = answers(prompt, keys(5, 2), answer_spec((2, 6)))
    assert (found.tokens[[1, 3]] == PAD).all()
    assert (found.log_probs[[1, 3]] == 0).all()
    assert (found.tokens[[0, 2, 4], :, 0] != PAD).all()


def count_turns(monkeypatch, prompt, answer):
    """The number of times that the loop extends the cache."""
    turns = []
    extend = type(MODEL).extend

    def counted(self, params, tokens, is_token, cache, at):
        jax.debug.callback(lambda at: turns.append(int(at)), at)
        return extend(self, params, tokens, is_token, cache, at)

    monkeypatch.setattr(type(MODEL), "extend", counted)
    found = answers(prompt, keys(len(prompt), 2), answer)
    jax.effects_barrier()
    return len(turns) - 1, found


def test_the_loop_stops_when_all_rows_have_ended(monkeypatch):
    digits = np.full((2, TOKENS), -1, np.int32)
    digits[0, 5] = 1  # Two tokens: 5, end.
    digits[1, END] = 1
    turns, found = count_turns(monkeypatch, prompts(), answer_spec((2, 30), digits))
    assert turns == 1
    assert (found.tokens[..., :2] == [5, END]).all()
    assert (found.tokens[..., 2:] == PAD).all()
    turns, _ = count_turns(monkeypatch, np.full((3, 4), PAD, np.int32), answer_spec((2, 30)))
    assert turns == 0


def pairs():
    """Answers of one or more pairs ab or cd, then the end: a, b, c, d are 2 to 5."""
    grammar = np.full((4, TOKENS), -1, np.int32)
    grammar[[0, 0, 3, 3], [2, 4, 2, 4]] = [1, 2, 1, 2]
    grammar[1, 3] = grammar[2, 5] = 3
    grammar[3, END] = 3
    return grammar


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0), Sampling(top_k=3, top_p=0.9)])
def test_a_grammar_is_never_violated(sampling):
    answer, prompt = answer_spec((4, 9), pairs()), prompts(12)
    found = answers(prompt, keys(12, 4), answer, sampling)
    ended = 0
    for row in found.tokens.reshape(-1, 9):
        state, text = 0, row[row != PAD]
        for token in text:
            state = answer.grammar[state, token]
            assert state >= 0, row
        ended += text[-1] == END
    assert sampling.is_greedy or ended
    expected = whole_log_probs(MODEL, PARAMS, prompt, found.tokens, answer)
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)


def test_answers_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"the tokenizer has 21 tokens and the decoder 20"):
        masks.possible(answer_spec((1, 4), vocabulary=21), VOCABULARY)
    grammar = pairs()
    grammar[3] = -1
    with pytest.raises(ValueError, match="in state 3 the grammar allows no token"):
        masks.possible(answer_spec((1, 4), grammar), VOCABULARY)
