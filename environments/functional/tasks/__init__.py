"""Functional environments of our own: tasks of Gymnasium and bsuite, step by step the same."""
