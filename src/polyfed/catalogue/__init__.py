"""Lists of all methods and server filters, and their creation from a config.

`source_reader` reads declarations from source files without importing them, so lists are fast and need no torch.
`factory` imports a method when it is needed and checks its options.
"""

from polyfed.catalogue.factory import (
    check_filter,
    check_method,
    filters,
    find_method,
    load,
    make,
    make_filter,
    methods,
)
from polyfed.catalogue.source_reader import MethodInfo, Option

__all__ = [
    "MethodInfo",
    "Option",
    "check_filter",
    "check_method",
    "filters",
    "find_method",
    "load",
    "make",
    "make_filter",
    "methods",
]
