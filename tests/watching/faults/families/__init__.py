"""One module for each family of models; in each the model, what is planted in it, and batches that are healthy."""
