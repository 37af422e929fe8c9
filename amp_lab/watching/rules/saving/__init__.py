"""What a checkpoint holds, and what is brought back."""
