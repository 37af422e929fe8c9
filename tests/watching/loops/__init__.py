"""Small training loops as people write them: those in `wrong/` have one mistake each, those in `right/` have none.

    python -m tests.watching.loops

prints what the watcher says otherwise than expected, and both counts in a table. `collection.py` says how a loop is
written; `wrong/__init__.py` says which known mistakes have no loop here, and why.
"""
