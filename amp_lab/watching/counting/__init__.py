"""What FP16 or BF16 would make of gradients: counted exactly, told in a table, with a loss scale recommended."""
