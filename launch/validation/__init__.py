"""Checking an agent before it is trained: what it gives is traced, then tried in short runs."""
