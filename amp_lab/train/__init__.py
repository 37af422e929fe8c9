"""Training with mixed precision: the Trainer, its checkpoints, what a step costs; small models, and data for them."""
