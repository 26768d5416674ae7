"""`fedloom deploy`."""
