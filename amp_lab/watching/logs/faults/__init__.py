"""One function a fault: it takes a run and returns a finding, or None where the log does not show the fault."""
