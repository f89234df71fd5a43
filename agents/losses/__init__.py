"""Losses and targets: pure functions."""
