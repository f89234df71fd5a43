"""What places, connects and starts roles: one folder an engine."""
