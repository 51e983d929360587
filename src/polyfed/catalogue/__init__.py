"""Which methods and server filters there are, and how to make one from a config.

`source_reader` reads declarations from source files without importing them, so lists need no torch; `factory`
imports a method when it is needed.
"""

from polyfed.catalogue.factory import filters, load, make, make_filter, methods
from polyfed.catalogue.source_reader import MethodInfo, Option

__all__ = ["MethodInfo", "Option", "filters", "load", "make", "make_filter", "methods"]
