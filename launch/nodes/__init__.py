"""The roles of a Launchpad program, one file each."""
