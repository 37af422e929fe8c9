"""Training with mixed precision: data, and what the lessons and your own scripts share."""
