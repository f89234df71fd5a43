"""The wheel has no laboratory: its tests are collected where a checkout is installed."""

import importlib.util

LABORATORY = importlib.util.find_spec("troupe.baselines.speed.laboratory")
collect_ignore_glob = [] if LABORATORY else ["test_*.py"]
