"""The inversion attack: how much of a client's pictures comes back from what it sent.

`likeness` says how alike pictures are, `inversion` trains the attacker's decoder, `target` reads from a run folder
what there is to attack, and `attack` does it all.
"""
