"""Several processes that train one model: each with its own scaler and its own copy of the weights."""
