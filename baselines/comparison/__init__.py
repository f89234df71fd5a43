"""Comparisons of returns: equivalent within a margin, different, or in need of more seeds."""
