"""Benchmarks of compiled runs: their rates, where the time goes, memory, and size of the batch."""
