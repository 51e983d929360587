"""Arithmetic of secure sums: shares, masks and fixed-point numbers, and the vector of a reply."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.exceptions import InvalidTag
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core import secure_sum as sums
from polyfed.core.class_tables import ClassTable
from polyfed.core.client_profile import Profile
from polyfed.core.payload import Payload, Value
from polyfed.core.schema import ScalarField, Schema, TableField, TensorField, WeightsField
from polyfed.core.secure_layout import clipped, from_vector, to_vector, vector_length
from polyfed.core.secure_method import _bytes_of_rows
from polyfed.core.step import Reply
from polyfed.errors import PayloadError

PROFILE = Profile("0", "any", (("w", (2,), "float32"), ("steps", (), "int64")), (), 2, 3, 10)
SCHEMA: Schema = {"model": WeightsField(), "samples": ScalarField(), "table": TableField("features", counts=True)}


@given(holders=st.integers(3, 9), secret=st.binary(min_size=32, max_size=32), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_enough_shares_recover_a_secret_and_fewer_do_not(holders: int, secret: bytes, seed: int) -> None:
    least = sums.threshold(holders)
    shares = dict(enumerate(sums.split_secret(secret, least, holders), 1))
    chosen = np.random.Generator(np.random.PCG64(seed)).permutation(holders)[:least] + 1
    assert sums.recover_secret({int(x): shares[int(x)] for x in chosen}) == secret
    with pytest.raises(PayloadError, match="do not fit together"):  # a random number of 521 bits is no secret
        sums.recover_secret({int(x): shares[int(x)] for x in chosen[1:]})


def test_shares_by_hand() -> None:
    # 5 + 2 x has the values 7, 9 and 11 at 1, 2 and 3: two of them determine 5
    assert sums.recover_secret({x: (5 + 2 * x).to_bytes(sums.SHARE_BYTES) for x in (1, 3)}) == (5).to_bytes(32)
    assert [sums.threshold(n) for n in (3, 4, 5, 20)] == [3, 3, 4, 14]


def test_masks_of_a_pair_cancel() -> None:
    private = [sums.new_secret(), sums.new_secret()]
    public = [sums.public_key(key) for key in private]
    a, b = (sums.agreed_secret(private[i], public[1 - i], "masks") for i in (0, 1))
    assert a == b != sums.agreed_secret(private[0], public[1], "another purpose")
    total = sums.pairwise_mask("x", "y", a, 7) + sums.pairwise_mask("y", "x", b, 7)
    assert not total.any() and len(set(sums.mask(a, 7).tolist())) == 7


def test_sealed_bytes_reach_their_recipient_only() -> None:
    key = sums.new_secret()
    sealed = sums.seal(key, b"share", "a to b")
    assert sums.unseal(key, sealed, "a to b") == b"share" and b"share" not in sealed
    for other_key, content, route in (
        (sums.new_secret(), sealed, "a to b"),
        (key, sealed, "a to c"),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 1]), "a to b"),
    ):
        with pytest.raises(InvalidTag):
            sums.unseal(other_key, content, route)


def test_sums_of_fixed_point_numbers_are_exact() -> None:
    values = np.array([[0.5, -3.25, 2.0**-24], [1.25, 3.0, 2.0**-24]])
    total = sums.to_fixed(values[0], 2) + sums.to_fixed(values[1], 2)
    assert sums.from_fixed(total).tolist() == [1.75, -0.25, 2.0**-23]
    for wrong in (np.nan, np.inf, 2.0**38):
        with pytest.raises(PayloadError, match="the limit of secure sums"):
            sums.to_fixed(np.array([wrong]), 2)


@pytest.mark.parametrize("by_samples", [True, False])
def test_the_mean_reply_of_two_clients_by_hand(by_samples: bool) -> None:
    weights = {"model": "samples", "table": "counts"} if by_samples else {"model": "", "table": ""}

    def sent(w: float, steps: int, samples: int, table: ClassTable) -> Reply:
        return {"model": {"w": torch.full((2,), w), "steps": torch.tensor(steps)}, "samples": samples, "table": table}

    a = sent(1.0, 4, 1, ClassTable(torch.tensor([0, 2]), torch.tensor([[1.0, 2], [5, 5]]), torch.tensor([3, 1])))
    b = sent(6.0, 6, 3, ClassTable(torch.tensor([0]), torch.tensor([[5.0, 6]]), torch.tensor([1])))
    vectors = [to_vector(reply, SCHEMA, weights, None, PROFILE) for reply in (a, b)]
    mean = from_vector(vectors[0] + vectors[1], SCHEMA, None, PROFILE)
    # weights 1 and 3: (1 + 18) / 4, counters (4 + 18) / 4, rounded
    # rows of class 0 weigh 3 and 1: (3 + 5) / 4 and (6 + 6) / 4
    assert mean.weights("model")["w"].tolist() == ([4.75, 4.75] if by_samples else [3.5, 3.5])
    assert int(mean.weights("model")["steps"]) == (6 if by_samples else 5) and mean.number("samples") == 4
    table = mean.table("table")
    assert table.classes.tolist() == [0, 2] and table.counted().tolist() == [4, 1]
    assert table.values.tolist() == [[2.0, 3.0] if by_samples else [3.0, 4.0], [5.0, 5.0]]


def test_fields_without_a_layout_are_refused() -> None:
    with pytest.raises(PayloadError, match="field 'codes' is neither weights, a class table nor a number"):
        vector_length({**SCHEMA, "codes": TensorField(("n", 2))}, None, PROFILE)


def test_a_reply_with_another_layout_is_refused() -> None:
    table = ClassTable(torch.tensor([0]), torch.ones(1, 3), torch.tensor([1]))  # of width 3 instead of 2
    reply: Reply = {"model": {"w": torch.ones(2), "steps": torch.tensor(1)}, "samples": 1, "table": table}
    weights = {"model": "samples", "table": "counts"}
    with pytest.raises(PayloadError, match="does not have the layout that its step declares"):
        to_vector(reply, SCHEMA, weights, None, PROFILE)


@pytest.mark.parametrize("value", [torch.zeros(3, sums.SECRET_BYTES, dtype=torch.uint8), "keys", torch.zeros(2, 32)])
def test_a_pair_of_keys_has_one_shape_and_type(value: Value) -> None:
    with pytest.raises(PayloadError, match="of a secure sum"):
        _bytes_of_rows(value)


def test_clients_clip_their_updates() -> None:
    table = ClassTable(torch.tensor([0, 1]), torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    reply: Reply = {"model": {"w": torch.tensor([4.0, 5.0]), "steps": torch.tensor(9)}, "table": table}
    received = Payload({"model": {"w": torch.tensor([1.0, 1.0]), "steps": torch.tensor(2)}})
    short = Payload(clipped(reply, received, 1.0))
    # the change (3, 4) has length 5 and becomes (0.6, 0.8); the row (3, 4) too
    assert short.weights("model")["w"].tolist() == pytest.approx([1.6, 1.8])
    assert int(short.weights("model")["steps"]) == 9
    assert short.table("table").values.flatten().tolist() == pytest.approx([0.6, 0.8, 0.3, 0.4])
    assert clipped(reply, received, 10.0)["model"] == reply["model"]
