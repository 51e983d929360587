"""What all tests share: a cache of their own, one torch thread, marks, and their order."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from tests import tiers

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def own_folders() -> Iterator[None]:
    """Decoded datasets and the user's key are in folders that end with the tests; started commands inherit them."""
    names = ("POLYFED_CACHE", "POLYFED_CONFIG")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as config:
        os.environ.update(zip(names, (cache, config), strict=True))
        yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def own_models() -> Iterator[None]:
    """Forget the models that a test registered, which other tests of the process would list."""
    from polyfed.models import registry

    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


hypothesis.settings.register_profile("polyfed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("polyfed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-methods",
        action="store_true",
        help="Run the checks of engines on every method, not only on one of each kind of messages.",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in tiers.marks(item.nodeid):
        item.add_marker(mark)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all-methods"):
        left_out = [item for item in items if item.get_closest_marker("all_methods")]
        items[:] = [item for item in items if not item.get_closest_marker("all_methods")]
        config.hook.pytest_deselected(items=left_out)
    if not config.pluginmanager.has_plugin("randomly"):
        items.sort(key=lambda item: tiers.priority(item.nodeid))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting again and again what collecting thousands of tests created.

    It also runs less often, because most of what tests create is freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    config.option.loadscopereorder = False  # the order of `tiers.priority`, not by the number of tests

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return tiers.together(nodeid)

    return Together(config, log)
