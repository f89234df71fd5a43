"""Recomputation: a program keeps fewer activations and computes them again."""
