"""Watching a training run: what its gradients would become in fewer bits."""
