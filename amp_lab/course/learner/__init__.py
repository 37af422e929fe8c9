"""What belongs to the learner: their copies of the lessons, the updates of these, and the record of what is done.

The command line works with it; `judging` adds a success to the record.
"""
