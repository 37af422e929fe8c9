"""Watching a training run: its calls and what is wrong with them, and what its gradients would become in fewer bits."""
