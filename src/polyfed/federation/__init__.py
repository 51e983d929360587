"""From a config to a federation: its clients with their models and data, its method, its engine and its result.

`base` holds what the config alone determines, `server_federation` what a server knows about its clients, and
`simulation` adds the data of simulated clients. Checks before round 1 and the summary of a run are here as well.
"""
