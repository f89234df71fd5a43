"""From what was asked for, on the command line or in JSON, to an experiment."""
