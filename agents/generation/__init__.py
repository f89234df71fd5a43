"""Answers of language models: tokens drawn one after another, as programs.

Letters: N prompts (streams), G answers to each, B = N G rows, P columns of a prompt, T of an
answer, V tokens of the decoder's vocabulary, S states of a grammar.
"""
