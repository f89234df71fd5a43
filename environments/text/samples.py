"""Groups of answers as text, for logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import specs


def decode(
    actions: specs.AnswerArray, prompt: Any, answers: Any, scores: Any, most: int = 4
) -> list[str]:
    """Returns a prompt, and below it answers with their scores, as lines.

    Equal answers are one line, which says how often they were given; those come first that were
    given most often. Characters that cannot be printed are escaped, as `\\n` is.

    Args:
      actions: spec of the answers, whose tokenizer is asked.
      prompt: int [P], from FIRST.
      answers: int [G, T].
      scores: [G].
      most: answers to show; how many are left out is said.

    Raises:
      ValueError: if shapes are others.
    """
    prompt, answers, scores = map(np.asarray, (prompt, answers, scores))
    if prompt.ndim != 1 or answers.ndim != 2 or scores.shape != answers.shape[:1]:
        raise ValueError(
            "samples are a prompt [P], answers [G, T] and scores [G], got "
            f"{[*prompt.shape]}, {[*answers.shape]} and {[*scores.shape]}"
        )
    counts: dict[tuple[str, float], int] = {}
    for answer, score in zip(answers, scores, strict=True):
        key = _text(actions, answer), float(score)
        counts[key] = counts.get(key, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    lines = [_text(actions, prompt[(prompt != actions.pad).argmax() :])]
    for (text, score), count in ranked[:most]:
        lines.append(f"  {score:.2f}  {text}" + (f"  ({count} times)" if count > 1 else ""))
    left = sum(count for _, count in ranked[most:])
    return [*lines, *([f"  and {left} more"] if left else [])]


def _text(actions: specs.AnswerArray, tokens: Sequence[int] | np.ndarray) -> str:
    """Returns the text of tokens, on one line."""
    text = actions.tokenizer.decode([int(token) for token in tokens])
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
