"""The command line: the only part that prints, and reads flags and environment variables."""
