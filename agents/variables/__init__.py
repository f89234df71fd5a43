"""The way of parameters from the learner to whoever acts with them."""
