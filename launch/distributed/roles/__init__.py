"""The roles of a distributed run, one file each."""
