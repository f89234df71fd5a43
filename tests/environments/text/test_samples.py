"""Groups of answers as lines of text."""

import numpy as np
import pytest

from troupe import environments
from troupe.environments import specs, text


def test_a_group_as_lines():
    environment = environments.make("tokens:addition", seed=0, answers=6)
    spec = environment.action_spec()
    encode = spec.tokenizer.encode
    prompt = [spec.pad, *encode("1+2=")]
    answers = np.full(spec.shape, spec.pad, np.int32)
    for row, answer in zip(answers, ["3", "12", "3", "4", "", "3"], strict=True):
        row[: len(answer) + 1] = [*encode(answer), spec.end]
    lines = text.decode(spec, prompt, answers, [1, 0.5, 1, 0, 0, 1], most=3)
    assert lines == ["1+2=", "  1.00  3  (3 times)", "  0.50  12", "  0.00  4", "  and 1 more"]
    assert text.decode(spec, prompt, answers[:1], [1.0]) == ["1+2=", "  1.00  3"]


def test_what_cannot_be_printed_is_escaped():
    tokenizer = text.CharacterTokenizer("a\n\x1bé")
    spec = specs.AnswerArray((1, 4), tokenizer.size, 0, 1, tokenizer=tokenizer)
    lines = text.decode(spec, [2, 3, 4, 5], [[3, 1, 0, 0]], [0.0])
    assert lines == ["a\\n\\x1bé", "  0.00  \\n"]


def test_shapes_that_do_not_fit():
    spec = environments.make("tokens:addition", seed=0).action_spec()
    with pytest.raises(ValueError, match=r"got \[4\], \[2, 3\] and \[3\]"):
        text.decode(spec, np.zeros(4, int), np.zeros((2, 3), int), np.zeros(3))
