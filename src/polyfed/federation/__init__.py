"""From a config to a federation: which clients take part, with which models, data and method.

`base` holds what the config alone determines, `plan` what a server knows of its clients; `simulation` adds the data
of clients that are simulated here. Checks before round 1 and the summary after the last round are here as well.
"""
