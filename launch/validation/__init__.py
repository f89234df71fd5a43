"""Checking what an agent gives, before it is trained: traced, with no device touched."""
