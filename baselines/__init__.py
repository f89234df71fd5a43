"""Tuned settings, the returns at every scale, the command line, and benchmarks of speed."""
