"""What a step's messages must look like. Declared beside the step, checked before a tensor is made.

A dimension is a number, a word ("classes", "features", or any other word, which then must mean the same number
throughout one message), or a function of (method, profile of the client), such as `FromMethod("width")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import DTYPES, MessageHeader, TensorHeader
from polyfed.core.payload import Payload
from polyfed.core.profile import Layout, Profile
from polyfed.errors import PayloadError

LARGEST = 1e300  # of a number in a message: sums of many stay finite
Dim = int | str | Callable[[object, Profile], int]


@dataclass(frozen=True)
class FromMethod:
    """A dimension or a layout that the method has as an attribute: an option, or a method that takes the profile."""

    attribute: str

    def __call__(self, method: object, profile: Profile) -> Any:
        value = getattr(method, self.attribute)
        return value(profile) if callable(value) else value


@dataclass(frozen=True)
class OptionIs:
    """A condition for `by_sample`: an option of the method has this value."""

    option: str
    value: object

    def __call__(self, method: object) -> bool:
        return bool(getattr(method, self.option) == self.value)


@dataclass
class _Site:
    """Whose message is checked, and what its free dimensions turned out to be."""

    method: object
    profile: Profile
    free: dict[str, int]
    sent: MessageHeader | None  # what went down in the same call, when a reply is checked

    def fits(self, dim: Dim, found: int) -> int | None:
        """None when `found` is right, else what it should have been."""
        if callable(dim):
            want = dim(self.method, self.profile)
        elif dim == "classes":
            want = self.profile.classes
        elif dim == "features":
            want = self.profile.features
        elif isinstance(dim, str):
            want = self.free.setdefault(dim, found)
        else:
            want = dim
        return None if want == found else want


@dataclass(frozen=True, kw_only=True)
class Field:
    """Base of the kinds of field. `means` says in words what the field is; `optional` lets a message leave it out.

    `by_sample` says that, given the client's model, one sample of the client touches one row at most, as of class
    means or of one embedding per sample. Only such rows can be protected one by one. Where it depends on the method's
    settings it is a function of the method.
    """

    means: str = ""
    optional: bool = False
    by_sample: bool | Callable[[object], bool] = False

    def has_own_rows(self, method: object) -> bool:
        """Whether one sample touches one row at most, as the method is set."""
        return self.by_sample(method) if callable(self.by_sample) else self.by_sample

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class TableField(Field):
    """A class table whose rows have `width` numbers."""

    width: Dim = "features"
    counts: bool = False
    dtype: torch.dtype = torch.float32

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        if name not in seen.tables:
            raise PayloadError(f"field '{name}' is not a class table")
        classes, counted = seen.tables[name]
        wrong = [c for c in classes if not 0 <= c < site.profile.classes]
        if wrong:
            raise PayloadError(f"field '{name}' has a row for class {wrong[0]} of {site.profile.classes} classes")
        if counted != self.counts:
            raise PayloadError(f"field '{name}' comes {'with' if counted else 'without'} counts, against its step")
        values = _described(name + "#values", seen, self.dtype)
        rows, width = (*values.shape, 0, 0)[:2]
        if len(values.shape) != 2 or rows != len(classes):
            raise PayloadError(f"field '{name}' has {len(classes)} classes and values of shape {values.shape}")
        want = site.fits(self.width, width)
        if want is not None:
            raise PayloadError(f"field '{name}' has rows of {width} numbers, expected {want}")


@dataclass(frozen=True)
class TensorField(Field):
    """One tensor of the given dimensions."""

    dims: tuple[Dim, ...] = ()
    dtype: torch.dtype = torch.float32

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        found = _described(name, seen, self.dtype)
        if len(found.shape) != len(self.dims):
            raise PayloadError(f"field '{name}' has shape {found.shape}, expected {len(self.dims)} dimensions")
        for axis, (dim, size) in enumerate(zip(self.dims, found.shape, strict=True)):
            want = site.fits(dim, size)
            if want is not None:
                raise PayloadError(f"field '{name}' has shape {found.shape}, expected {want} along axis {axis}")


@dataclass(frozen=True)
class WeightsField(Field):
    """The state of the client's model, of its head, or the running statistics of its norms, every tensor by name."""

    of: Literal["model", "head", "statistics"] = "model"

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        expected = _expected(getattr(site.profile, self.of))
        found = _inside(name, seen)
        for path in (*seen.scalars, *seen.empty):
            if path == name or path.startswith(name + "/"):
                raise PayloadError(f"field '{name}' holds something else than named tensors: '{path}'")
        _check_layout(name, found, expected, f"the client's {self.of}")


@dataclass(frozen=True)
class ScalarField(Field):
    """One JSON scalar of a kind; numbers must be finite, and not below `least`."""

    kind: Literal["number", "text", "flag"] = "number"
    least: float | None = None

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        value = seen.scalars.get(name)
        kinds = {"number": (int, float), "text": (str,), "flag": (bool,)}[self.kind]
        right = isinstance(value, kinds) and (self.kind == "flag" or not isinstance(value, bool))
        if not right:
            raise PayloadError(f"field '{name}' is {value!r}, expected a {self.kind}")
        if isinstance(value, int | float) and not abs(value) <= LARGEST:  # written so that NaN fails as well
            raise PayloadError(f"field '{name}' is not a finite number of at most {LARGEST:g}")
        if self.least is not None and isinstance(value, int | float) and value < self.least:
            raise PayloadError(f"field '{name}' is {value:g}, expected at least {self.least:g}")


@dataclass(frozen=True)
class TreeField(Field):
    """Named tensors whose names and shapes only the method can know; still finite and of a type that may travel.

    In a reply, `like` names a field that went down in the same call: names, shapes and types must be the same. Where
    a client's profile says what they are, `layout` is a function of (method, profile) that gives them.
    """

    like: str | None = None
    layout: Callable[[object, Profile], Layout] | None = None

    def check(self, name: str, seen: MessageHeader, site: _Site) -> None:
        paths = (*seen.tensors, *seen.scalars, *seen.empty)
        if not any(path == name or path.startswith(name + "/") for path in paths):
            raise PayloadError(f"field '{name}' is missing")
        if self.like is not None and site.sent is not None:
            _check_layout(name, _inside(name, seen), _inside(self.like, site.sent), f"what was sent as '{self.like}'")
        if self.layout is not None:
            expected = _expected(self.layout(site.method, site.profile))
            _check_layout(name, _inside(name, seen), expected, "what the method makes of the client's profile")


Schema = Mapping[str, Field]


def check_header(
    seen: MessageHeader, schema: Schema, method: object, profile: Profile, sent: MessageHeader | None = None
) -> None:
    """Refuse unknown and missing fields, wrong shapes and wrong types, by name, from the headers alone."""
    present = seen.sizes().keys()
    for name in sorted(present - schema.keys()):
        raise PayloadError(f"field '{name}' is not one of the step's ({', '.join(schema) or 'it has none'})")
    site = _Site(method, profile, {}, sent)
    for name, kind in schema.items():
        if name in present:
            kind.check(name, seen, site)
        elif not kind.optional:
            raise PayloadError(f"field '{name}' is missing")


def check_finite(payload: Payload) -> None:
    """Refuse NaN and infinity, naming the field."""

    def walk(path: str, value: object) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise PayloadError(f"field '{path}' is {value}, expected a finite number")
        tensors = [value.values] if isinstance(value, ClassTable) else [value]
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise PayloadError(f"field '{path}' holds values that are not finite")
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{path}/{key}", item)

    for name, value in payload.items():
        walk(name, value)


def _described(path: str, seen: MessageHeader, dtype: torch.dtype) -> TensorHeader:
    name = path.split("#")[0]
    if path not in seen.tensors:
        raise PayloadError(f"field '{name}' is not a tensor")
    found = seen.tensors[path]
    if found.dtype != DTYPES[dtype]:
        raise PayloadError(f"field '{name}' holds numbers of type {found.dtype}, expected {DTYPES[dtype]}")
    return found


def _inside(name: str, seen: MessageHeader) -> dict[str, TensorHeader]:
    """The tensors of a field that is a mapping, by their names in it."""
    return {path[len(name) + 1 :]: d for path, d in seen.tensors.items() if path.startswith(name + "/")}


def _expected(layout: Layout) -> dict[str, TensorHeader]:
    return {name: TensorHeader(DTYPES[getattr(torch, dtype)], shape) for name, shape, dtype in layout}


def _check_layout(
    name: str, found: Mapping[str, TensorHeader], expected: Mapping[str, TensorHeader], of: str
) -> None:
    for tensor in sorted(expected.keys() | found.keys()):
        if tensor not in found:
            raise PayloadError(f"field '{name}' lacks '{tensor}' of {of}")
        if tensor not in expected:
            raise PayloadError(f"field '{name}' has '{tensor}', which {of} does not")
        if found[tensor] != expected[tensor]:
            was, want = found[tensor], expected[tensor]
            raise PayloadError(
                f"field '{name}' has '{tensor}' of shape {was.shape} ({was.dtype}), "
                f"expected {want.shape} ({want.dtype})"
            )
