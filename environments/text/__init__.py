"""Tasks of text as environments: a prompt is an episode, a group of answers to it is its action."""

from .environment import TextEnvironment
from .ids import PREFIX, TASKS, make
from .tasks import Addition, Reverse, Task, is_held_out, split
from .tokenizers import CharacterTokenizer, Tokenizer

__all__ = [
    "PREFIX",
    "TASKS",
    "Addition",
    "CharacterTokenizer",
    "Reverse",
    "Task",
    "TextEnvironment",
    "Tokenizer",
    "is_held_out",
    "make",
    "split",
]
