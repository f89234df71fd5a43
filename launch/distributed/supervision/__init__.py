"""How a role is watched, and what it knows of its own incarnation."""
