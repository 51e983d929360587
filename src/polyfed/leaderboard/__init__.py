"""Leaderboard: every method in four fixed scenarios, with gains over local training.

`scenarios` defines the scenarios, `plan` chooses what runs in them, `measure` collects the numbers of finished runs,
`records` holds the data file, and `page` writes the tables.
"""
