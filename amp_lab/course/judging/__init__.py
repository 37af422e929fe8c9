"""How an answer is judged, with the learner's code held on a leash.

A lesson's `checks.py` is written with `ask` and `expect`; `exercise` runs it under a `guard` and makes a `verdict`.
"""
