"""What a page consists of: a lesson's source, a notebook's cells, and two versions of a page made one.

Nothing here touches the disk: `learner`, `checking` and the tools that build the notebooks do.
"""
