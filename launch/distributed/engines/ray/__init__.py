"""Ray: roles are actors of a cluster, on this machine or on many, under any Python and jax."""
