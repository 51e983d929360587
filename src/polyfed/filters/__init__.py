"""Server filters: they change the update of a round before the server applies it to its model.

A filter is `NAME.py`, or a folder `NAME/` whose `filter.py` registers it.
"""
