"""The order and the number of calls: scale, backward, unscale_, step, update."""
