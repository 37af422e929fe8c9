"""What an x-ray warns of: casts, tensors and numbers that cost time or digits."""
