"""Declarations that the catalogue reads from the source of a method and its base classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polyfed import catalogue, plugins
from polyfed.catalogue import Option

PLUG = '''
"""Methods of another package."""
from dataclasses import dataclass
from polyfed.core import Method, Needs, Sends, register
from polyfed.methods import fedavg
from polyfed.methods.fedproto import FedProto as Prototypes
from polyfed.methods.nosuch import Nothing


class Mixin:
    mixed: int = 1  # not a dataclass, so not a field


@dataclass(frozen=True)
class Base(Mixin, Method):
    first: int = 1  # one
    second: str = "b"  # two
    needs = Needs(same_head=True)
    sends = Sends(up="a number")


@register("plug-heir")
@dataclass(frozen=True)
class Heir(Base):
    """Heir: its own third, and another second."""

    third: float = 0.5  # three
    second: str = "c"  # two, changed
    sends = Sends(down="a word")


@register("plug-averaging")
@dataclass(frozen=True)
class Averaging(fedavg.FedAvg):
    """Averaging: of another file."""


@register("plug-proto")
@dataclass(frozen=True)
class FedProto(Prototypes):
    """Proto: of another file under another name."""

    guidance: float = 2.0  # stronger


@register("plug-lost")
@dataclass(frozen=True)
class Lost(Nothing):
    """Lost: its base is nowhere."""

    own: bool = True  # all that is known
'''


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with an entry point for methods."""
    (tmp_path / "plug.py").write_text(PLUG)
    announced = tmp_path / "plug-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (announced / "entry_points.txt").write_text("[polyfed.methods]\nplug = plug\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    # other tests of this process may have filled them
    caches = (catalogue.methods, catalogue.find_method, plugins.entry_points, plugins._all_entry_points)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("plug")
def test_options_needs_and_sends_are_inherited_and_overridden() -> None:
    heir = catalogue.methods()["plug-heir"]
    assert heir.options == [
        Option("first", "int", 1, "one"),
        Option("second", "str", "c", "two, changed"),
        Option("third", "float", 0.5, "three"),
    ]
    assert heir.requires == ["same_head", "same_classes"]
    assert (heir.sends_up, heir.sends_down) == ("nothing", "a word")


@pytest.mark.usefixtures("plug")
def test_bases_in_other_files_are_followed() -> None:
    known = catalogue.methods()
    assert known["plug-averaging"].options == known["fedavg"].options != []
    assert known["plug-averaging"].requires == known["fedavg"].requires
    assert known["plug-averaging"].sends_up == known["fedavg"].sends_up
    (own,) = [option for option in known["plug-proto"].options if option not in known["fedproto"].options]
    assert own == Option("guidance", "float", 2.0, "stronger")
    assert [o.name for o in known["plug-proto"].options] == [o.name for o in known["fedproto"].options]
    assert [option.name for option in known["plug-lost"].options] == ["own"]
