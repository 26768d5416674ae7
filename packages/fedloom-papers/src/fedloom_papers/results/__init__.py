"""The pages of docs/results: `python -m fedloom_papers.results`."""
