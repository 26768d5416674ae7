"""Our own studies, and the pages of docs/results: `python -m fedloom_papers.results`."""
