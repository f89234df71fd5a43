"""From a pure function to a running program: where it runs, how it is planned, what is called."""
