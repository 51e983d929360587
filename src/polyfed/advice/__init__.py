"""Advice on methods, from what they declare and what the leaderboard measured.

`situation` describes clients and wishes, `ranking` orders methods and gives reasons against the others, and
`start_config` makes the config to start from. Nothing here needs torch, except for configs with differential privacy.
"""

from polyfed.advice.proposals import Advice, advise

__all__ = ["Advice", "advise"]
