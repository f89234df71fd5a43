"""Deciding: how values and ops of a program lie on the axes of a mesh."""
