"""Loops and trainers that train the same tiny model on the same batches, and the gate that lets them take turns."""
