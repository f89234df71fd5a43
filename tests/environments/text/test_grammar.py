"""Grammars: automata that let exactly those answers come that an expression matches."""

import itertools
import re

import numpy as np
import pytest

from troupe import environments
from troupe.environments.text import CharacterTokenizer, grammar

LETTERS = CharacterTokenizer("ab1]")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "a",
        "ab|1",
        "(ab)*",
        "(a|b)*ab",
        "a?b+",
        "a{2}",
        "a{1,2}b{0,1}",
        "(a|1){2,}",
        "[ab]1",
        "[^a]*",
        "[a-b]*1",
        r"[\]a]+",
        "[a-]",
        r"\d*a",
        ".{3}",
        r"\]",
        "(a*|b)*1?",
        "((a|b)(b|a)|1)*",
        "(|a)b",
    ],
)
def test_an_expression_matches_as_pythons_own_does(expression):
    table = grammar.from_expression(expression, LETTERS)
    for length in range(5):
        for letters in itertools.product(LETTERS.alphabet, repeat=length):
            text = "".join(letters)
            found = grammar.allows(table, [*LETTERS.encode(text), LETTERS.end])
            assert found == bool(re.fullmatch(expression, text)), text


def test_the_table_of_an_expression():
    tokenizer = CharacterTokenizer("ab")  # pad, end, a, b
    table = grammar.from_expression("ab*", tokenizer)
    assert table.tolist() == [[-1, -1, 1, -1], [-1, 1, -1, 1]]
    assert table.dtype == np.int32


def test_no_state_is_without_an_end():
    """The letter c would be needed behind a; so a may not come."""
    table = grammar.from_expression("a?b|ac", CharacterTokenizer("ab"))
    assert table.tolist() == [[-1, -1, 1, 2], [-1, -1, -1, 2], [-1, 2, -1, -1]]
    assert grammar.from_expression("b|ac", CharacterTokenizer("ab"))[0].tolist() == [-1, -1, -1, 1]


class Pairs(CharacterTokenizer):
    """Writes `ab` by a token of its own, too."""

    def __init__(self):
        super().__init__("ab")
        self.size = 5

    def decode(self, ids):
        return "".join(
            "ab" if number == 4 else super(Pairs, self).decode([number]) for number in ids
        )


def test_tokens_may_be_of_several_characters():
    table = grammar.from_expression("(ab)+", Pairs())
    a, b, ab, end = 2, 3, 4, 1
    for tokens, right in [
        ([ab, end], True),
        ([a, b, ab, end], True),
        ([a, ab, end], False),
        ([ab, a, end], False),
        ([end], False),
    ]:
        assert grammar.allows(table, tokens) == right, tokens


def test_sets_of_characters_by_place():
    table = grammar.from_sets(["ab", "1]", "a"], LETTERS)
    allowed = {
        "".join(letters)
        for letters in itertools.product(LETTERS.alphabet, repeat=3)
        if grammar.allows(table, [*LETTERS.encode("".join(letters)), LETTERS.end])
    }
    assert allowed == {"a1a", "a]a", "b1a", "b]a"}
    digits = grammar.from_sets(["d"], CharacterTokenizer("0d"))
    assert digits.tolist() == [[-1, -1, -1, 1], [-1, 1, -1, -1]]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(a", r"no \) at character 3"),
        ("a)", r"a \) without \( at character 2"),
        ("[a", r"no \] at character 3"),
        ("*a", "nothing to repeat at character 1"),
        ("a{", "no number at character 3"),
        ("a{2,1}", "no {m}, {m,} or {m,n}"),
        ("a{1", "no {m}, {m,} or {m,n}"),
        ("a\\", r"nothing behind the \\ at"),
        ("x", "matches no answer that these tokens can write"),
        ("[]", "matches no answer"),
        ("(a|b)*a(a|b){14}", "more than 10,000 states"),
    ],
)
def test_expressions_that_cannot_be(expression, message):
    with pytest.raises(environments.InvalidOptionError, match=message):
        grammar.from_expression(expression, LETTERS)


def test_addition_asks_for_digits():
    spec = environments.make("tokens:addition", seed=0).action_spec()
    encode = spec.tokenizer.encode
    assert grammar.allows(spec.grammar, [*encode("120"), spec.end])
    assert not grammar.allows(spec.grammar, encode("1+"))
    assert not grammar.allows(spec.grammar, [spec.end])
    assert environments.make("tokens:addition?grammar=none", seed=0).action_spec().grammar is None
    assert environments.make("tokens:reverse", seed=0).action_spec().grammar is None


def test_a_grammar_is_an_option():
    made = environments.make("tokens:reverse?letters=2", seed=0, grammar="[ab]{1,5}")
    assert made.action_spec().grammar.shape == (6, 5)
    table = np.zeros((1, 5), np.int32)
    assert (environments.make("tokens:reverse?letters=2", seed=0, grammar=table)) is not None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[ab]{1,4}", r"does not let the solution '.*' come"),
        ("(", r"has no \)"),
        (3, "must be an expression, such as '.0-9.\\+', got 3"),
        (np.zeros((1, 4), np.int32), r"int32 \[states, 5\]"),
    ],
)
def test_grammars_that_do_not_fit(value, message):
    with pytest.raises(environments.InvalidOptionError, match=message):
        environments.make("tokens:reverse?letters=2", seed=0, grammar=value)
