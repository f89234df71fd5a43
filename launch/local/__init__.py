"""Runs in one process."""
