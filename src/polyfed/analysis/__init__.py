"""Measures of what was learned: similarity of features, maps of them. Pure functions over tensors that runs keep."""
