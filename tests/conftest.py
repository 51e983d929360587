"""What all tests share: a cache of their own, and one torch thread, so that tests can run side by side."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def own_cache() -> Iterator[None]:
    """Datasets are decoded into a folder that ends with the tests; commands started by tests inherit it."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("POLYFED_CACHE")
        os.environ["POLYFED_CACHE"] = folder
        yield
        if before is None:
            del os.environ["POLYFED_CACHE"]
        else:
            os.environ["POLYFED_CACHE"] = before
