"""Tokenizers: texts to numbers and back."""

import itertools
import json
import pickle
import sys

import pytest

from troupe import environments
from troupe.environments.text import CharacterTokenizer, FileTokenizer, TextEnvironment, find_layout

from . import word_tokenizers


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


@pytest.fixture
def folder(tmp_path):
    """A tokenizer of whole words and spaces, as `tokenizers` writes it."""
    words = ["<unk>", "add", " ", "1", "2", "=", "12", "<end>", "<fill>"]
    word_tokenizers.write(tmp_path, words, r"12|\d|\w+|\s|=")
    return tmp_path


def test_a_file_of_tokenizers(folder):
    tokenizer = FileTokenizer(str(folder))
    assert (tokenizer.size, tokenizer.end, tokenizer.pad) == (9, 7, 8)
    assert tokenizer.encode("add 12=") == [1, 2, 6, 5]
    assert tokenizer.decode([8, 1, 2, 6, 7, 5]) == "add 12"
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy == tokenizer == FileTokenizer(str(folder / "tokenizer.json"))
    assert copy.encode("1 2") == [3, 2, 4]
    assert tokenizer != CharacterTokenizer("a")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    assert FileTokenizer(str(folder)).pad == 7  # Without another, what ends fills too.
    assert FileTokenizer(str(folder)) != tokenizer


def test_a_task_by_a_file_of_tokenizers(folder):
    class Count:
        """Say what follows."""

        def prompts(self, seed, held_out):
            return itertools.cycle(["add 1=", "add 2="])

        def solution(self, prompt):
            return {"add 1=": "2", "add 2=": "12"}[prompt]

        def score(self, prompt, answer):
            return float(answer == self.solution(prompt))

    layout = find_layout(Count(), tokenizer=str(folder), grammar=r"1?\d")
    environment = TextEnvironment(Count(), seed=0, answers=3, **layout._asdict())
    assert environment.reset().observation["prompt"].tolist() == [1, 2, 3, 5]
    assert environment.reset().observation["solution"].tolist() == [6, 7]
    last = environment.step([[6, 7], [3, 4], [4, 7]])
    assert last.observation["scores"].tolist() == [1, 1, 0]  # In one token, in two, and wrong.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read .* it is a file tokenizer.json or the folder of one"),
        ("{}", "is no file of `tokenizers`"),
        ("words", "names no token that ends an answer: give its eos_token"),
    ],
)
def test_files_that_cannot_be(folder, text, message):
    path = folder / "tokenizer.json"
    if text == "words":
        (folder / "tokenizer_config.json").unlink()
    elif text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(environments.InvalidOptionError, match=message) as found:
        environments.make("tokens:reverse", seed=0, tokenizer=str(folder))
    assert "\n" not in str(found.value)


def test_tokenizers_are_an_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(environments.MissingExtraError, match=r"'troupe\[tokens\]'"):
        FileTokenizer(str(folder))


class TooLarge(CharacterTokenizer):
    def encode(self, text):
        return [number + 1 for number in super().encode(text)]


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (CharacterTokenizer("abc"), "the alphabet 'abc' has no "),
        (TooLarge("abcdefgh="), r"makes the token 11 of .*; texts are of tokens from 0 to 10"),
        (3, "tokenizer must be 'characters', 'printable' or where a tokenizer.json is, got 3"),
    ],
)
def test_tokenizers_that_do_not_fit(tokenizer, message):
    with pytest.raises(environments.InvalidOptionError, match=message):
        environments.make("tokens:reverse", seed=0, tokenizer=tokenizer)


def test_printable_characters():
    made = environments.make("tokens:reverse", seed=0, tokenizer="printable")
    assert made.action_spec().vocabulary == 96 + 2
    assert made.action_spec().tokenizer.encode("az~ \n")
