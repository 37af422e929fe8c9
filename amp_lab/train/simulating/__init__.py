"""What `amp_lab.train.ddp_simulator` is made of: a model of several ranks that train one model together.

`tokens` are what a rank does, `programs` reads what a learner wrote, `replicas` holds the numbers of a rank and
`wire` the time and the values of its collectives, `calls` pairs them, `ranks` does one token after the other,
`diagnoses` says what went wrong, `timeline` is what comes out.
"""
