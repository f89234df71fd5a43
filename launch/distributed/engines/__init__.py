"""Engines, which place, connect and start roles: one folder each."""
