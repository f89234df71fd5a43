"""Presets have as many parameters as is published."""

import jax
import pytest

from troupe.agents.networks.decoder import Decoder, num_parameters, shapes
from troupe.agents.networks.decoder_presets import PRESETS, preset

#: Of the files that are published, in which a tied embedding stands once.
PUBLISHED = {
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama-8b": 8_030_261_248,
    "llama-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
}
OURS = {"tiny": 1e5, "10m": 1e7, "124m": 1.24e8, "1.3b": 1.3e9}


def test_presets_have_the_published_numbers_of_parameters():
    assert {name: num_parameters(PRESETS[name]) for name in PUBLISHED} == PUBLISHED


def test_ours_are_of_the_size_in_their_names():
    assert set(PRESETS) == {*PUBLISHED, *OURS}
    for name, about in OURS.items():
        assert num_parameters(PRESETS[name]) == pytest.approx(about, rel=0.03), name


@pytest.mark.parametrize("name", ["llama-8b", "qwen3-0.6b"])
def test_the_largest_are_traced_without_being_made(name):
    decoder = Decoder(PRESETS[name])
    params = jax.eval_shape(decoder.init, jax.random.key(0))
    assert jax.tree.map(lambda x: x.shape, params) == shapes(PRESETS[name])
    tokens = jax.ShapeDtypeStruct((4, 64), "int32")
    logits = jax.eval_shape(decoder.apply, params, tokens, tokens.update(dtype=bool))
    assert (logits.shape, logits.dtype) == ((4, 64, PRESETS[name].vocabulary), "float32")


def test_fields_are_changed_and_unknown_names_listed():
    assert preset("tiny", vocabulary=40).vocabulary == 40
    with pytest.raises(ValueError, match="no preset 'gpt'; there are tiny, 10m, 124m"):
        preset("gpt")
