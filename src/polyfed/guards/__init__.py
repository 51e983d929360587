"""Differential privacy of the fields that clients upload: clipping, noise and accounting.

`protections` resolves the config; `privacy` protects replies at the client, with `clipping`, `noise` and
`sensitivity`; `accountant` and `privacy_cost` compute the epsilon of every client.
"""
