"""PyTorch's error messages about dtypes and loss scaling, in plain words.

The door is `amp_lab.autocast.errors`.
"""
