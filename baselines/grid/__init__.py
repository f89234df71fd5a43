"""Grids of runs: every setting with every seed."""
