"""Studies of the partitioner, the simulator and the replays; a wheel does not hold them."""
