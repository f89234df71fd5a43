"""Sweeps: many runs of one agent with other settings, to find good ones."""
