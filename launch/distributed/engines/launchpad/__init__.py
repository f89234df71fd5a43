"""Launchpad, with Courier for calls and Reverb for replay."""
