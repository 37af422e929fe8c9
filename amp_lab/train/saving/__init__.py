"""How a checkpoint gets to the disk and back. The door is `amp_lab.train.checkpoint`; one subject a file."""
