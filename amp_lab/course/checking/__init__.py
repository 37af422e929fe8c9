"""`amp-lab check` from the inside: `lessons` has the learner's pages run and yields what came of them.

`page` makes what is run out of a copy; `run` starts nbval with `plugin`, which tells what happens; each check cell
shows its `evidence`; `report` says what all that means, with the help of `shadows`.
"""
