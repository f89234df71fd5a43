"""Placement of mesh axes on levels of links, and sums between devices in steps."""
