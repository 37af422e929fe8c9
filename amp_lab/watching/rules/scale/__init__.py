"""The scaler and its scale, through a run."""
