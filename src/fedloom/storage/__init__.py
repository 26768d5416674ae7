"""Files of a run: the run directory, its checkpoints, and the client states."""
