"""Several processes that train one model together: starting them, talking to each other, ending as one."""
