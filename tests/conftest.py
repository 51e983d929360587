"""What all tests share: a cache of their own, one torch thread, and who runs beside whom."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

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


@pytest.fixture(autouse=True)
def own_models() -> Iterator[None]:
    """Forget the models that a test registered, which other tests of the process would list."""
    from polyfed.models import registry

    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


# With several processes: the tests of a file run in one of them, one after the other, and so share what they begin
# with. (pytest-xdist's own mark for this, `xdist_group`, has no effect with pytest 9.2.)
WHOLE_FOLDERS = ("tests/ui/", "tests/on_ray/")  # they share a browser, a Ray
BY_METHOD = ("tests/methods/test_battery.py", "tests/engines/test_engines_agree.py")  # `[method-what is tested]`
EACH_ALONE = ("tests/cli/test_cli_runs.py", "tests/models/")  # they share nothing, and fill the end


def place(test: str) -> str:
    """What a test runs together with, from its id."""
    file, _, name = test.partition("::")
    for folder in WHOLE_FOLDERS:
        if file.startswith(folder):
            return folder
    if file in BY_METHOD and "-" in name:
        return f"{file}::{name.rpartition('-')[0]}"
    return test if file.startswith(EACH_ALONE) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return place(nodeid)

    return Together(config, log)
