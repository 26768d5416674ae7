"""Published data sets: downloads, checksums, readers."""
