"""Vectors, layouts, random numbers, wire format, hyper-parameters: nothing federated."""
