"""One program over several hosts: a supervisor on each, and the run on the first."""
