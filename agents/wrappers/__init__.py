"""Wrappers: what can be added to any agent, before its name: `troupe train normalized+sac`."""
