"""Learning: the one learner of every agent, and what updates are made of."""
