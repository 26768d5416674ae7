"""What Flower runs: the only files that know it. They carry bytes, and nothing else."""
