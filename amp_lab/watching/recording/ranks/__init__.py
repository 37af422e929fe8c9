"""Several processes that train one model: what each of them tells the others about itself, and where it waits.

No collective is added to the loop. What a rank has seen goes through the store of the process group, from a thread.
"""
