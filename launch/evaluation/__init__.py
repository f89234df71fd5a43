"""Judging a policy, in a run or after it."""
