"""Vectors, layouts, random numbers, wire format, hyper-parameters: no federated learning."""
