"""FedL2G: one guiding vector per class, learned so that following it lowers the clients' loss on a quiz.

`method` is the algorithm. The other modules hold its parts: the gradient for the guiding vectors, the split of a
client's data into study and quiz set, and the record for figures.
"""

from polyfed.methods.fedl2g.method import FedL2G

__all__ = ["FedL2G"]
