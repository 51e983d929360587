"""Federated learning methods, one file or folder each.

A file `NAME.py`, or `method.py` in a folder, is the paper's algorithm; other modules of a folder are used by that
method only. Start with `local`, `fedavg` and `fedproto`. README.md describes the layout of a method file.
"""
