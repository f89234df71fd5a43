"""Telling how a run goes: metrics, lines, plots."""
