"""Several micro-batches for one step, several optimizers with one scaler."""
