"""Networks: torsos, heads and distributions, as pure functions."""
