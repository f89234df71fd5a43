"""Short runs of an agent, and the table of all that `troupe check` looks at."""
