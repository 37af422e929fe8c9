"""Reading the log of a run after the fact: which fault of mixed precision would look like this. Imports no PyTorch."""
