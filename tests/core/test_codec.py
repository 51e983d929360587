"""Encoding of payloads: round trips, refusal of damaged and forged frames, and digests."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts.reliability.mutations import mutated, with_valid_digest
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import content_hash, decode, encode, encode_in_parts
from polyfed.core.frame_digest import BLAKE3, SHA256, START, XXH3
from polyfed.core.message_header import DTYPES, read_header
from polyfed.core.payload import Payload
from polyfed.errors import PayloadError


def same(a: Any, b: Any) -> bool:
    """Equal in type, shape and content."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, ClassTable):
        if not isinstance(b, ClassTable) or (a.counts is None) != (b.counts is None):
            return False
        counts = a.counts is None or b.counts is None or same(a.counts, b.counts)
        return same(a.classes, b.classes) and same(a.values, b.values) and counts
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)


NAMES = st.text("abcxyz._-é ", min_size=1, max_size=6)
ANY_NAMES = st.text(st.characters(exclude_characters="/#", exclude_categories=["Cs"]), min_size=1)
SHAPES = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(DTYPES)))
    shape = draw(SHAPES)
    stream = np.random.Generator(np.random.PCG64(draw(st.integers(0, 1000))))
    made = torch.from_numpy(stream.integers(0, 2 if dtype == torch.bool else 100, size=shape)).to(dtype)
    if len(shape) >= 2 and draw(st.booleans()):
        made = made.transpose(0, 1)  # not dense
    if len(shape) == 4 and draw(st.booleans()):
        made = made.contiguous(memory_format=torch.channels_last)
    return made


@st.composite
def tables(draw: st.DrawFn) -> ClassTable:
    classes = sorted(draw(st.sets(st.integers(0, 20), max_size=5)))
    width = draw(st.integers(1, 4))
    stream = np.random.Generator(np.random.PCG64(draw(st.integers(0, 1000))))
    values = torch.from_numpy(stream.normal(size=(len(classes), width))).float()
    counts = torch.from_numpy(stream.integers(1, 99, size=len(classes))) if draw(st.booleans()) else None
    return ClassTable(torch.tensor(classes, dtype=torch.int64), values, counts)


SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    tensors() | tables() | SCALARS, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_round_trip(payload: dict[str, Any]) -> None:
    frame = encode(payload)
    seen = read_header(frame.data)
    back = decode(frame.data, seen)
    assert same(dict(back), payload)
    assert seen.sizes() == frame.fields
    assert frame.overhead + sum(frame.fields.values()) == len(frame.data)
    assert encode(back).data == frame.data


@settings(max_examples=100)
@given(
    st.dictionaries(st.text(st.characters(exclude_characters="/#", exclude_categories=["Cs"]), min_size=1), tensors())
)
def test_tensors_are_a_safetensors_file(payload: dict[str, Tensor]) -> None:
    """Byte by byte what safetensors writes, so that digests do not depend on who wrote a frame."""
    data = encode(payload).data
    start = 44 + int.from_bytes(data[36:44], "little")
    assert data[start:] == safetensors.torch.save({name: t.contiguous() for name, t in payload.items()})


def test_views_of_one_tensor_are_decoded_separately() -> None:
    base = torch.arange(12.0)
    back = decode(encode({"whole": base, "half": base[:6], "again": base, "even": base[::2]}).data)
    back.tensor("whole").zero_()
    assert back.tensor("again").tolist() == list(range(12))
    assert back.tensor("half").tolist() == list(range(6))
    assert back.tensor("even").tolist() == [0, 2, 4, 6, 8, 10]
    assert base.tolist() == list(range(12))


def test_digest_is_independent_of_memory_layout() -> None:
    plain = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(2, 3, 4, 4)
    last = plain.contiguous(memory_format=torch.channels_last)
    strided = torch.zeros(2, 3, 4, 8)[..., ::2].copy_(plain)
    graph = plain.clone().requires_grad_()
    shared = plain.clone().share_memory_()  # type: ignore[no-untyped-call]
    assert last.stride() != plain.stride()
    digests = {content_hash({"x": t, "n": 1}) for t in (plain, last, strided, graph, shared)}
    assert len(digests) == 1
    assert content_hash({"n": 1, "x": plain}) in digests  # nor does the order of names matter
    assert content_hash({"x": plain, "n": 2}) not in digests
    assert content_hash({"x": plain.double(), "n": 1}) not in digests
    assert content_hash({"x": plain.reshape(2, 3, 16), "n": 1}) not in digests


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "list"),
        ({"deep": {1, 2}}, "set"),
        (np.zeros(2), "ndarray"),
        (object(), "object"),
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.eye(2).to_sparse(), "sparse"),
        ({"a/b": 1}, "a/b"),
        ({"a#b": 1}, "a#b"),
        ({3: 1}, "3"),
        ({"": 1}, "''"),
    ],
)
def test_invalid_values_are_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=f"field.*{message}|{message}.*field"):
        encode({"field": value})


def test_a_limit_is_checked_first() -> None:
    frame = encode({"x": torch.zeros(1000)}).data
    with pytest.raises(PayloadError, match="at most 4,000"):
        read_header(frame, limit=4000)
    read_header(frame, limit=len(frame))


# What an adversary or a bad line can do

EXAMPLE: dict[str, Any] = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3, dtype=torch.int64)},
    "table": ClassTable(torch.tensor([1, 4]), torch.ones(2, 3), torch.tensor([5, 6])),
    "number": 2.5,
    "none": {},
}


def peak() -> int:
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


def test_damaged_frames_are_refused() -> None:
    frame = encode(EXAMPLE).data
    stream = np.random.Generator(np.random.PCG64(1))
    before, altered = peak(), 0
    for _ in range(20_000):
        bad = mutated(frame, stream)
        if bad == frame:
            continue
        altered += 1
        with pytest.raises(PayloadError):
            decode(bad)
    assert altered > 19_000
    assert peak() - before < 50 << 20


def test_frames_altered_with_a_valid_digest_are_safe() -> None:
    """The digest detects accidents. With a valid digest, the header checks must refuse everything else."""
    frame = encode(EXAMPLE).data
    stream = np.random.Generator(np.random.PCG64(2))
    before, refused = peak(), 0
    for _ in range(5_000):
        try:
            back = decode(with_valid_digest(mutated(frame, stream)))
        except PayloadError:
            refused += 1
        else:
            assert isinstance(back, Payload)
            encode(back)  # what was accepted is a payload like any other
    assert refused > 2_000
    assert peak() - before < 50 << 20


def forged(head: object, tensors: dict[str, Tensor] | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    body = len(text).to_bytes(8, "little") + text + safetensors.torch.save(tensors or {})
    return SHA256.magic + hashlib.sha256(body).digest() + body


def forged_shape(shape: list[object]) -> bytes:
    """Return a frame whose only tensor announces a shape."""
    text = json.dumps(heads()).encode()
    entry = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    body = len(text).to_bytes(8, "little") + text + len(entry).to_bytes(8, "little") + entry + bytes(4)
    return SHA256.magic + hashlib.sha256(body).digest() + body


def heads(**parts: object) -> dict[str, object]:
    return {"scalars": {}, "tables": {}, "empty": [], **parts}


ROW = {"t#values": torch.zeros(1, 2)}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (forged(heads(scalars={"x": 1}), {"x": torch.zeros(2)}), "'x' occurs twice"),
        (forged(heads(scalars={"x": [1, 2]})), "'x' is a list"),
        (forged(heads(scalars=[1])), "malformed"),
        (forged(heads(scalars={"x": 1, "x/y": 2})), "'x/y'"),
        (forged(heads(scalars={"a//b": 1})), "'a//b' is not a valid name"),
        (forged(heads(tables={"t": [[2**70], False]}), ROW), "class label"),
        (forged(heads(tables={"t": [[-1], False]}), ROW), "class label"),
        (forged(heads(tables={"t": [[2**31], False]}), ROW), "class 2147483648"),
        (forged(heads(scalars={"x" * 2000: 1})), "a name has 2,000 characters"),
        (forged_shape([10**3999, 10**3999]), "size"),
        (forged_shape([1] * 500_000), "500000 dimensions"),
        (forged_shape([2.0]), "size"),
        (forged_shape([True]), "size"),
        (forged_shape(["2"]), "size"),
        (forged_shape([2**40] * 16), "announces"),
        (forged(heads(tables={"t": [[0], True]}), ROW), "'t' is incomplete"),
        (forged(heads(tables={"t": [[0], False]})), "'t' is incomplete"),
        (forged(heads(tables={"t": [[0, 1], False]}), ROW), "2 classes"),
        (forged(heads(), ROW), "'t' is incomplete"),
        (forged(b"[" * 100_000), "malformed"),
        (forged(b"{}"), "malformed"),
        (forged(b"\xff"), "malformed"),
        (forged(heads(), {"x": torch.zeros(2, dtype=torch.complex64)}), "C64"),
    ],
)
def test_forged_frames_are_refused(frame: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        decode(frame)


@pytest.mark.parametrize("offsets", [[4, 8], [0, 4], [-4, 0], ["0", 4], []])
def test_tensors_that_overlap_or_leave_gaps_are_refused(offsets: list[Any]) -> None:
    text = json.dumps(heads()).encode()
    entries = {
        "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "y": {"dtype": "F32", "shape": [1], "data_offsets": offsets},
    }
    entry = json.dumps(entries).encode()
    body = len(text).to_bytes(8, "little") + text + len(entry).to_bytes(8, "little") + entry + bytes(8)
    frame = SHA256.magic + hashlib.sha256(body).digest() + body
    if offsets == [4, 8]:
        assert decode(frame).keys() == {"x", "y"}
    else:
        with pytest.raises(PayloadError, match="malformed"):
            decode(frame)


def test_names_that_occur_twice_are_found_in_linear_time() -> None:
    """With a quadratic search, these names take minutes."""
    names = {f"n{i}": 1 for i in range(100_000)}
    with pytest.raises(PayloadError, match="'n99999' occurs twice"):
        read_header(forged(heads(scalars=names, empty=["n99999"])))


def test_a_large_header_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(PayloadError, match="a header of 68,000,000 bytes"):
        read_header(forged(b" " * 68_000_000))


def test_a_table_row_needs_at_least_one_sample() -> None:
    counts = torch.tensor([0], dtype=torch.int32)
    with pytest.raises(PayloadError, match="at least one sample"):
        decode(forged(heads(tables={"t": [[3], True]}), {**ROW, "t#counts": counts}))


def test_fast_checksums_detect_damage_and_are_refused_across_a_trust_boundary() -> None:
    payload: dict[str, Any] = {"weights": {"a": torch.arange(5.0)}, "text": "x"}
    fast, slow = encode(payload, XXH3), encode(payload)
    assert fast.data[START:] == slow.data[START:] and fast.overhead == slow.overhead
    assert content_hash(decode(fast.data)) == slow.digest
    with pytest.raises(PayloadError, match="damaged"):
        decode(fast.data[:-1] + bytes([fast.data[-1] ^ 1]))
    read_header(slow.data, cryptographic=True)
    with pytest.raises(PayloadError, match="messages between sites and their coordinator need BLAKE3 or SHA-256"):
        read_header(fast.data, cryptographic=True)


def test_messages_of_sites_have_a_cryptographic_digest_and_states_keep_theirs() -> None:
    payload: dict[str, Any] = {"weights": {"a": torch.arange(5.0)}, "text": "x"}
    frame, state = encode(payload, BLAKE3), encode(payload)
    assert frame.data.startswith(b"PF3\0") and frame.digest == blake3(frame.data[START:]).hexdigest()
    assert state.data.startswith(b"PF1\0") and content_hash(decode(frame.data)) == state.digest
    read_header(frame.data, cryptographic=True)
    with pytest.raises(PayloadError, match="damaged"):
        read_header(frame.data[:-1] + bytes([frame.data[-1] ^ 1]), cryptographic=True)


def test_a_frame_of_an_unknown_version_is_refused_by_name() -> None:
    with pytest.raises(PayloadError, match=r"has the format 'PF9', which this version .* it reads PF1, PF2, PF3"):
        decode(b"PF9\0" + encode({}).data[4:])


def test_a_frame_in_parts_is_the_frame() -> None:
    payload: dict[str, Any] = {
        "model": {
            "b": torch.arange(6.0).view(2, 3),
            "a": torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        },
        "empty": torch.zeros(0, 3),
        "state": {"x": 1.5, "table": ClassTable(torch.tensor([1, 3]), torch.ones(2, 4), torch.tensor([2, 5]))},
    }
    for digest in (SHA256, XXH3, BLAKE3):
        whole, frame = encode(payload, digest), encode_in_parts(payload, digest)
        assert b"".join(frame.parts) == whole.data
        assert (frame.digest, len(frame), frame.fields) == (whole.digest, len(whole.data), whole.fields)
