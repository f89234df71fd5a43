"""Jobs of schedulers: what SLURM and Kubernetes are given to start Ray, and a run on it."""
