"""Dtypes of weights, losses and numbers, and what does not fit into 16 bits."""
