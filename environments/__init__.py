"""dm_env environments."""
