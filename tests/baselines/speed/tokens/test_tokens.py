"""The benchmarks of language models, on sizes that say nothing about speed."""

import itertools
import json

import jax
import numpy as np
import pytest

from troupe.agents.networks.decoder import Decoder, num_parameters
from troupe.agents.networks.decoder_presets import preset
from troupe.baselines.speed import arithmetic
from troupe.baselines.speed.tokens import clock, command, decoding, rates

SMALL = "--preset tiny --batch 4 --prompt 4 --length 16 --batches 3 --rounds 1"


@pytest.fixture
def seconds(monkeypatch):
    """Seconds of measured calls, each a second less than those of the call before."""
    measured, left = clock.seconds, itertools.count(1000, -1)

    def seconds(function, *arguments):
        assert measured(function, *arguments) >= 0
        return next(left)

    monkeypatch.setattr(clock, "seconds", seconds)
    monkeypatch.setattr(rates, "seconds", seconds)


def test_everything_is_measured_in_one_run(capsys, seconds):
    words = f"{SMALL} --presets tiny --train-batch 2 --train-length 8 --json"
    assert command.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decoding"]["prefill_seconds"] == 999
    assert found["decoding"]["decode_tokens_per_second"] == 4 * 15 / (1000 - 999)
    assert found["decoding"]["share_of_bare"] == 998
    batching = found["batching"]
    assert batching["answers"] == 12
    assert batching["equal_answers"] == 1.0
    assert 1 < batching["mean_length"] < batching["longest_of_batches"] <= 16
    (one,) = found["rates"]
    assert one["parameters"] == num_parameters(preset("tiny"))
    assert one["mfu"] is None  # Nobody tells a CPU's peak.
    assert min(one[f"{name}_tokens_per_second"] for name in ("decode", "train")) > 0
    assert one["sync_seconds"] > 0
    text = command.table({**found, "rates": [{**one, "mfu": 0.5, "of_products": 0.6}]})
    assert "MFU 0.50, 0.60 of a product's rate" in text
    assert text.count("\n") == 3


def test_what_is_faster_than_the_noise_has_no_rate(monkeypatch):
    config = preset("tiny")
    monkeypatch.setattr(decoding, "in_turn", lambda variants, rounds: dict.fromkeys(variants, 1.0))
    found = decoding.decoding(config, batch=2, prompt=4, length=8, rounds=1)
    assert found["decode_tokens_per_second"] is None
    assert found["share_of_bare"] is None
    text = command.table({"device": "cpu", "jax": jax.__version__, "decoding": found})
    assert "decoding: faster than is measured" in text


def test_an_unknown_preset_is_one_line(capsys):
    assert command.main(["--preset", "huge"]) == 2
    assert "there is no preset 'huge'" in capsys.readouterr().err


@pytest.mark.parametrize("tied", [True, False])
def test_the_bare_loop_has_the_products_of_a_token(tied):
    """As many, of the same sizes, as the decoder has for one token of each row."""
    config = preset("tiny", tied=tied)
    decoder, batch, columns = Decoder(config), 3, 10
    params = decoder.apart(decoder.init(jax.random.key(0)))

    def token(params):
        cache = decoder.empty_cache(batch, columns, apart=True)
        given = np.zeros((batch, 1), np.int32), np.ones((batch, 1), bool)
        hidden, _ = decoder.extend(params, *given, cache, 4)
        return decoder.logits(params, hidden[:, 0])

    def bare(params):
        return decoding.bare_loop(config, params, batch, columns, 1)

    found, expected = (arithmetic.products(step, params) for step in (bare, token))
    assert found == expected
    assert sum(found.values()) == 9 * config.num_layers + 1
