"""The traced program, its verifier and its interpreter."""
