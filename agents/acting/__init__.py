"""Acting: policies, and the actors that run them here or ask a server."""
