"""Tokenizers of words, as files of `tokenizers`."""

import json

import pytest


def write(folder, words, pattern):
    """Writes one whose tokens are the words, "<unk>", "<end>" and "<fill>" among them, and whose
    texts are split by a regular expression."""
    package = pytest.importorskip("tokenizers")
    model = package.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    made = package.Tokenizer(model)
    made.pre_tokenizer = package.pre_tokenizers.Split(package.Regex(pattern), "isolated")
    made.decoder = package.decoders.Fuse()
    made.add_special_tokens(["<end>", "<fill>"])
    made.save(str(folder / "tokenizer.json"))
    named = {"eos_token": {"content": "<end>"}, "pad_token": "<fill>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
