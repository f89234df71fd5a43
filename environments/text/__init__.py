"""Tasks of text as environments: a prompt is an episode, a group of answers to it is its action."""

from . import grammar
from .environment import TextEnvironment
from .ids import PREFIX, TASKS, make
from .layout import TextLayout, find_layout
from .samples import decode
from .tasks import Addition, Reverse, Task, is_held_out, split
from .tokenizers import CharacterTokenizer, FileTokenizer, Tokenizer

__all__ = [
    "PREFIX",
    "TASKS",
    "Addition",
    "CharacterTokenizer",
    "FileTokenizer",
    "Reverse",
    "Task",
    "TextEnvironment",
    "TextLayout",
    "Tokenizer",
    "decode",
    "find_layout",
    "grammar",
    "is_held_out",
    "make",
    "split",
]
