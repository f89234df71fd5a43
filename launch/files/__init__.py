"""The files of a run's directory."""
