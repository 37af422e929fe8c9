"""Asking PyTorch what autocast does: each operator that has a rule is called with made-up arguments.

The door is `amp_lab.autocast.policy`.
"""
