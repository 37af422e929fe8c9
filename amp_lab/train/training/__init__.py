"""The parts of a Trainer: the step, the epochs around it, and what is done where one of them cannot be made."""
