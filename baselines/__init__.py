"""Baselines: tuned settings, comparisons, benchmarks and the command line."""
