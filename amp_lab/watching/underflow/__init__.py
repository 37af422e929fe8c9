"""What FP16 made zero in the course of a run: counted in samples, module by module."""
