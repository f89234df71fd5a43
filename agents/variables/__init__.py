"""How parameters come from the learner to whoever acts with them."""
