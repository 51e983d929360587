"""Cutting sub-models out of one big model, by width and by depth, and merging them back position by position."""

from polyfed.models.slicing.cutting import cut, cut_specs, skeleton
from polyfed.models.slicing.exits import EarlyExits, build_with_exits
from polyfed.models.slicing.index import Cut, Index, Rule, drawn, extract, only_rows, prefix, window
from polyfed.models.slicing.layout import block_names, classifier_tensors
from polyfed.models.slicing.owners import OwnerMean, coverage

__all__ = [
    "Cut",
    "EarlyExits",
    "Index",
    "OwnerMean",
    "Rule",
    "block_names",
    "build_with_exits",
    "classifier_tensors",
    "coverage",
    "cut",
    "cut_specs",
    "drawn",
    "extract",
    "only_rows",
    "prefix",
    "skeleton",
    "window",
]
