"""Speeds of what is done beside a learner's steps."""
