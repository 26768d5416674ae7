"""What is measured of a run: metrics, scores of models, clients and sub-models, and the curve."""
