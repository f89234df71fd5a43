"""A small decoder and what it is asked, for tests of generation."""

import jax
import numpy as np

from troupe.agents.generation import masks, sampling
from troupe.agents.networks.decoder import Decoder, DecoderConfig
from troupe.environments.specs import AnswerArray

PAD, END, TOKENS, VOCABULARY = 0, 1, 18, 20


def answer_spec(shape, grammar=None, vocabulary=TOKENS):
    return AnswerArray(shape, vocabulary, PAD, END, grammar)


def decoder(**changes):
    sizes = {
        **{"vocabulary": VOCABULARY, "width": 32, "num_layers": 2, "num_heads": 4},
        **{"num_kv_heads": 2, "head_width": 8, "hidden": 64},
    }
    return Decoder(DecoderConfig(**{**sizes, **changes}))


def prompts(num_prompts=5, columns=6, seed=0):
    """Prompts of different lengths, left-padded."""
    random = np.random.default_rng(seed)
    prompt = random.integers(2, TOKENS, (num_prompts, columns)).astype(np.int32)
    padding = random.integers(0, columns, num_prompts)
    return np.where(np.arange(columns) < padding[:, None], PAD, prompt)


def keys(num_prompts, group, seed=1):
    return jax.random.split(jax.random.key(seed), (num_prompts, group))


def whole_logits(model, params, prompt, tokens):
    """Logits of answers [N, G, T] by the whole forward, [N, G, T, V], and which are tokens."""
    n, group, length = tokens.shape
    rows = np.broadcast_to(np.asarray(prompt)[:, None], (n, group, prompt.shape[1]))
    everything = np.concatenate([rows, tokens], axis=-1).reshape(n * group, -1)
    is_answer = masks.answer_mask(tokens, PAD, END)
    is_token = np.concatenate([masks.prompt_mask(rows, PAD), is_answer], axis=-1)
    # Compiled, as a learner's is.
    logits = jax.jit(model.apply)(params, everything, is_token.reshape(n * group, -1))
    return logits[:, -length - 1 : -1].reshape(n, group, length, -1), np.asarray(is_answer)


def whole_log_probs(model, params, prompt, tokens, answer, temperature=1.0):
    logits, is_answer = whole_logits(model, params, prompt, tokens)
    allowed = masks.allowed_along(answer, VOCABULARY, tokens)
    found = sampling.log_probs(logits, tokens, temperature, allowed)
    return np.where(is_answer, found, 0.0)
