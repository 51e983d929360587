"""Fields of FedVTC's messages."""

from __future__ import annotations

from polyfed.core import TableField, TensorField, TreeField
from polyfed.core.schema import FromMethod

STATISTICS = {"prototypes": TableField("features", by_sample=True), "deviation": TensorField(("features",))}
DECODER = {"decoder": TreeField(layout=FromMethod("decoder_layout"))}
OPTIONAL_DECODER = {"decoder": TreeField(layout=FromMethod("decoder_layout"), optional=True)}
# mean features and mean squared features of each class, computed in evaluation mode
MOMENTS = {"moments": TableField(FromMethod("moments_width"), by_sample=True, optional=True)}
VARIANCES = {"variances": TableField("features")}
