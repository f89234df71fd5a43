"""Data to learn from: where it may come from, and how it is recorded."""
