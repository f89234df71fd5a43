"""Watching roles, and what a role knows of its own incarnation."""
