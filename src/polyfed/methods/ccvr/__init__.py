"""CCVR: `method` has the algorithm, `class_statistics` describes classes in messages, `gaussians` pools and samples
them.
"""

from polyfed.methods.ccvr.method import CCVR

__all__ = ["CCVR"]
