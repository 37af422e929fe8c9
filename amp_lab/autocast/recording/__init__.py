"""One run of a model, recorded operator by operator.

The door is `amp_lab.autocast.xray`.
"""
