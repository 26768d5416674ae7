"""What is on disk: the run directory, its checkpoints, and the client state."""
