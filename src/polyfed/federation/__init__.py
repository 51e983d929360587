"""From a config to a federation: which clients take part, with which models, data and method.

`plan` holds what a server knows of its clients, `simulation` adds the data of clients that are simulated here. What a
federation checks before round 1 and what it summarises after the last round is here as well.
"""
