"""Width and depth slicing: cut sub-models out of a server model and average them back, position by position.

`cut` returns the positions of a sub-model, `extract` copies its weights, `OwnerMean` averages trained sub-models.
"""

from polyfed.models.slicing.cutting import cut, cut_specs, skeleton
from polyfed.models.slicing.exits import EarlyExits, build_with_exits
from polyfed.models.slicing.family import Family
from polyfed.models.slicing.index import Cut, Index, Rule, drawn, extract, only_rows, prefix, select, window
from polyfed.models.slicing.layout import block_names, classifier_tensors
from polyfed.models.slicing.norm_statistics import PooledStatistics, statistics_of
from polyfed.models.slicing.owner_mean import OwnerMean, coverage
from polyfed.models.slicing.scaling import divided

__all__ = [
    "Cut",
    "EarlyExits",
    "Family",
    "Index",
    "OwnerMean",
    "PooledStatistics",
    "Rule",
    "block_names",
    "build_with_exits",
    "classifier_tensors",
    "coverage",
    "cut",
    "cut_specs",
    "divided",
    "drawn",
    "extract",
    "only_rows",
    "prefix",
    "select",
    "skeleton",
    "statistics_of",
    "window",
]
