"""Runs of many roles, in threads or processes."""
