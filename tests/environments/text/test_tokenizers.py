"""Tokenizers: texts to numbers and back."""

import pytest

from troupe import environments
from troupe.environments.text import CharacterTokenizer


def test_characters_follow_pad_and_end():
    tokenizer = CharacterTokenizer("xyz ")
    assert (tokenizer.size, tokenizer.pad, tokenizer.end) == (6, 0, 1)
    assert tokenizer.encode("zz x") == [4, 4, 5, 2]
    assert tokenizer.decode([0, 0, 4, 0, 5, 2, 1, 3]) == "z x"
    assert tokenizer == CharacterTokenizer("xyz ") != CharacterTokenizer("xy z")
    assert {tokenizer: 1}[CharacterTokenizer("xyz ")] == 1


@pytest.mark.parametrize("alphabet", ["", "aba", None, ["a"]])
def test_alphabets_that_cannot_be(alphabet):
    with pytest.raises(environments.InvalidOptionError, match="each once"):
        CharacterTokenizer(alphabet)


def test_characters_that_it_has_not():
    with pytest.raises(environments.InvalidOptionError, match=r"'ab' has no 'c', .* 'abc'"):
        CharacterTokenizer("ab").encode("abc")
