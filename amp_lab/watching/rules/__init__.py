"""What the events of a training loop mean: one small function for each mistake."""
