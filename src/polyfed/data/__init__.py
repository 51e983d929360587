"""Datasets, file readers and data partitions.

`dataset` opens a dataset by name, from files or from arrays, as memory-mapped tensors; `locations` finds its files.
The readers (`idx`, `parquet`, `tables`, `folders`, ...) decode one file layout each into plain arrays.
`partition` assigns the samples to clients and splits the samples of each client into train, validation and test.
"""
