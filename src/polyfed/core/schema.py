"""Message schemas. They are declared with a step and checked before a tensor is created.

A dimension is a number, a name, or a function of (method, profile of the client) such as `FromMethod("width")`. The
names "classes" and "features" refer to the client's profile; any other name stands for one number in a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from polyfed.core.class_tables import ClassTable
from polyfed.core.client_profile import Layout, Profile
from polyfed.core.finite_values import LARGEST, check_finite
from polyfed.core.message_header import DTYPES, MessageHeader, TensorHeader
from polyfed.core.payload import Payload, Value
from polyfed.errors import PayloadError

Dim = int | str | Callable[[object, Profile], int]
# A bound of values: a number, "samples" (training samples of the client) or "label" (its last class).
Limit = float | Literal["samples", "label"]


@dataclass(frozen=True)
class FromMethod:
    """Dimension or layout from an attribute of the method: an option, or a function of the profile."""

    attribute: str

    def __call__(self, method: object, profile: Profile) -> Any:
        value = getattr(method, self.attribute)
        return value(profile) if callable(value) else value


@dataclass(frozen=True)
class OptionIs:
    """Condition for `by_sample`: an option of the method has this value."""

    option: str
    value: object

    def __call__(self, method: object) -> bool:
        return bool(getattr(method, self.option) == self.value)


@dataclass
class CheckContext:
    """Client and method of the message that is checked, and the values of its free dimensions."""

    method: object
    profile: Profile
    free: dict[str, int]
    sent: MessageHeader | None  # for a reply: the message that it answers

    def expected(self, dim: Dim, size: int) -> int | None:
        """Return None if `size` is right, else the expected size."""
        if callable(dim):
            want = dim(self.method, self.profile)
        elif dim == "classes":
            want = self.profile.classes
        elif dim == "features":
            want = self.profile.features
        elif isinstance(dim, str):
            want = self.free.setdefault(dim, size)
        else:
            want = dim
        return None if want == size else want

    def limit(self, limit: Limit | None) -> float | None:
        """Return a bound of values as a number."""
        if limit == "samples":
            return float(self.profile.samples)
        return float(self.profile.classes - 1) if limit == "label" else limit


@dataclass(frozen=True, kw_only=True)
class Field:
    """Base class of fields. `means` describes the field; a message may leave out an `optional` one.

    `by_sample` states that, for a given model, one sample of the client influences at most one row, as in class means
    or in one embedding per sample. Only such rows can be protected row by row. It may be a function of the method, if
    it depends on the method's settings.

    `from_model` states that the field follows from the client's model and from what the client received, such as
    outputs on synthetic samples. Weights always do. Other fields are taken as computed from the client's samples.
    """

    means: str = ""
    optional: bool = False
    by_sample: bool | Callable[[object], bool] = False
    from_model: bool = False

    def has_own_rows(self, method: object) -> bool:
        """Return whether one sample influences at most one row, with the method's settings."""
        return self.by_sample(method) if callable(self.by_sample) else self.by_sample

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        raise NotImplementedError

    def check_values(self, name: str, value: Value, context: CheckContext) -> None:
        """Raise PayloadError if decoded values are out of range. By default every finite value is allowed."""


@dataclass(frozen=True)
class TableField(Field):
    """A class table with rows of `width` numbers."""

    width: Dim = "features"
    counts: bool = False
    dtype: torch.dtype = torch.float32

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        if name not in header.tables:
            raise PayloadError(f"field '{name}' is not a class table")
        classes, counted = header.tables[name]
        wrong = [c for c in classes if not 0 <= c < context.profile.classes]
        if wrong:
            raise PayloadError(f"field '{name}' has a row for class {wrong[0]} of {context.profile.classes} classes")
        if counted != self.counts:
            raise PayloadError(f"field '{name}' has {'counts' if counted else 'no counts'}, unlike its declaration")
        values = _tensor_header(name + "#values", header, self.dtype)
        rows, width = (*values.shape, 0, 0)[:2]
        if len(values.shape) != 2 or rows != len(classes):
            raise PayloadError(f"field '{name}' has {len(classes)} classes and values of shape {values.shape}")
        want = context.expected(self.width, width)
        if want is not None:
            raise PayloadError(f"field '{name}' has rows of {width} numbers, expected {want}")

    def check_values(self, name: str, value: Value, context: CheckContext) -> None:
        if isinstance(value, ClassTable) and value.counts is not None:
            total = int(value.counts.sum())
            if total > context.profile.samples:
                raise PayloadError(
                    f"field '{name}' counts {total:,} samples, but the client has {context.profile.samples:,}"
                )


@dataclass(frozen=True)
class TensorField(Field):
    """One tensor with the given dimensions. `least` and `most` bound its values, such as labels and counts."""

    dims: tuple[Dim, ...] = ()
    dtype: torch.dtype = torch.float32
    least: Limit | None = None
    most: Limit | None = None

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        tensor = _tensor_header(name, header, self.dtype)
        if len(tensor.shape) != len(self.dims):
            raise PayloadError(f"field '{name}' has shape {tensor.shape}, expected {len(self.dims)} dimensions")
        for axis, (dim, size) in enumerate(zip(self.dims, tensor.shape, strict=True)):
            want = context.expected(dim, size)
            if want is not None:
                raise PayloadError(f"field '{name}' has shape {tensor.shape}, expected {want} along axis {axis}")

    def check_values(self, name: str, value: Value, context: CheckContext) -> None:
        if (self.least is None and self.most is None) or not isinstance(value, torch.Tensor) or not value.numel():
            return
        smallest, largest = (float(v) for v in torch.aminmax(value))
        _check_range(name, smallest, context.limit(self.least), None)
        _check_range(name, largest, None, context.limit(self.most))


@dataclass(frozen=True)
class WeightsField(Field):
    """The state dict of the client's model or head, or the running statistics of its normalisation layers."""

    of: Literal["model", "head", "statistics"] = "model"

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        expected = _expected(getattr(context.profile, self.of))
        actual = _inside(name, header)
        for path in (*header.scalars, *header.empty):
            if path == name or path.startswith(name + "/"):
                raise PayloadError(f"field '{name}' holds something other than named tensors: '{path}'")
        _check_layout(name, actual, expected, f"the client's {self.of}")

    def check_values(self, name: str, value: Value, context: CheckContext) -> None:
        for path, tensor in value.items() if isinstance(value, Mapping) else ():
            if path.endswith("running_var") and isinstance(tensor, torch.Tensor) and bool((tensor < 0).any()):
                raise PayloadError(f"field '{name}' has negative variances in '{path}'")


@dataclass(frozen=True)
class ScalarField(Field):
    """One JSON scalar. Numbers must be finite, at least `least` and at most `most`."""

    kind: Literal["number", "text", "flag"] = "number"
    least: Limit | None = None
    most: Limit | None = None

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        value = header.scalars.get(name)
        kinds = {"number": (int, float), "text": (str,), "flag": (bool,)}[self.kind]
        valid = isinstance(value, kinds) and (self.kind == "flag" or not isinstance(value, bool))
        if not valid:
            raise PayloadError(f"field '{name}' is {value!r}, expected a {self.kind}")
        if isinstance(value, int | float) and not abs(value) <= LARGEST:  # written so that NaN fails as well
            raise PayloadError(f"field '{name}' is not a finite number of at most {LARGEST:g}")
        if isinstance(value, int | float):
            _check_range(name, float(value), context.limit(self.least), context.limit(self.most))


@dataclass(frozen=True)
class TreeField(Field):
    """Named tensors with names and shapes that only the method knows.

    In a reply, `like` names a field of the message it answers: names, shapes and types must be the same. `layout` is
    a function of (method, profile) that returns the expected layout, if the profile determines it.
    """

    like: str | None = None
    layout: Callable[[object, Profile], Layout] | None = None

    def check(self, name: str, header: MessageHeader, context: CheckContext) -> None:
        paths = (*header.tensors, *header.scalars, *header.empty)
        if not any(path == name or path.startswith(name + "/") for path in paths):
            raise PayloadError(f"field '{name}' is missing")
        if self.like is not None and context.sent is not None:
            _check_layout(
                name, _inside(name, header), _inside(self.like, context.sent), f"what was sent as '{self.like}'"
            )
        if self.layout is not None:
            expected = _expected(self.layout(context.method, context.profile))
            _check_layout(name, _inside(name, header), expected, "the layout that the method expects of this client")


Schema = Mapping[str, Field]


def check_header(
    header: MessageHeader, schema: Schema, method: object, profile: Profile, sent: MessageHeader | None = None
) -> None:
    """Raise PayloadError for unknown and missing fields, wrong shapes and wrong types. Only the header is read."""
    present = header.sizes().keys()
    for name in sorted(present - schema.keys()):
        raise PayloadError(f"field '{name}' is not declared by the step ({', '.join(schema) or 'it declares none'})")
    context = CheckContext(method, profile, {}, sent)
    for name, kind in schema.items():
        if name in present:
            kind.check(name, header, context)
        elif not kind.optional:
            raise PayloadError(f"field '{name}' is missing")


def check_values(payload: Payload, schema: Schema, method: object, profile: Profile) -> dict[str, float]:
    """Raise PayloadError for values that are not finite or out of range. Return what `check_finite` returns."""
    largest = check_finite(payload)
    context = CheckContext(method, profile, {}, None)
    for name, value in payload.items():
        schema[name].check_values(name, value, context)
    return largest


def _check_range(name: str, value: float, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise PayloadError(f"field '{name}' is {value:g}, expected at least {least:g}")
    if most is not None and value > most:
        raise PayloadError(f"field '{name}' is {value:g}, expected at most {most:g}")


def _tensor_header(path: str, header: MessageHeader, dtype: torch.dtype) -> TensorHeader:
    name = path.split("#")[0]
    if path not in header.tensors:
        raise PayloadError(f"field '{name}' is not a tensor")
    tensor = header.tensors[path]
    if tensor.dtype != DTYPES[dtype]:
        raise PayloadError(f"field '{name}' holds numbers of type {tensor.dtype}, expected {DTYPES[dtype]}")
    return tensor


def _inside(name: str, header: MessageHeader) -> dict[str, TensorHeader]:
    """Return the tensors of a mapping field by their names in it."""
    return {path[len(name) + 1 :]: d for path, d in header.tensors.items() if path.startswith(name + "/")}


def _expected(layout: Layout) -> dict[str, TensorHeader]:
    return {name: TensorHeader(DTYPES[getattr(torch, dtype)], shape) for name, shape, dtype in layout}


def _check_layout(
    name: str, actual: Mapping[str, TensorHeader], expected: Mapping[str, TensorHeader], of: str
) -> None:
    for tensor in sorted(expected.keys() | actual.keys()):
        if tensor not in actual:
            raise PayloadError(f"field '{name}' lacks '{tensor}' of {of}")
        if tensor not in expected:
            raise PayloadError(f"field '{name}' has '{tensor}', which {of} does not")
        if actual[tensor] != expected[tensor]:
            actual_tensor, want = actual[tensor], expected[tensor]
            raise PayloadError(
                f"field '{name}' has '{tensor}' of shape {actual_tensor.shape} ({actual_tensor.dtype}), "
                f"expected {want.shape} ({want.dtype})"
            )
