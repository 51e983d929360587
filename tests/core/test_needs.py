"""Requirements of methods on their clients, and the error message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyfed.core.client_profile import Profile
from polyfed.core.needs import Needs, check, violated
from polyfed.errors import InputError

HEAD = (("weight", (4, 3), "float32"),)
PLAIN = Profile("0", "cnn", (("w", (2,), "float32"), *HEAD), HEAD, features=3, classes=4, samples=9)
OTHER = {
    "same_architecture": replace(PLAIN, name="1", architecture="mlp", model=HEAD),
    "same_head": replace(PLAIN, name="1", head=(("weight", (9, 3), "float32"),)),
    "same_features": replace(PLAIN, name="1", features=7),
    "same_classes": replace(PLAIN, name="1", classes=5),
    "images": replace(PLAIN, name="1", input_shape=(7,)),
    "numbers": replace(PLAIN, name="1", tokens=True),
}


@pytest.mark.parametrize("need", list(OTHER))
def test_each_requirement_is_checked_separately(need: str) -> None:
    nothing = Needs(same_classes=False)
    wanted = replace(nothing, **{need: True})
    for kind, other in OTHER.items():
        found = violated(wanted, [PLAIN, other])
        assert (found is not None) == (kind == need)
    assert violated(nothing, [PLAIN, *OTHER.values()]) is None
    assert violated(Needs(True, True, True, True), [PLAIN, replace(PLAIN, name="1")]) is None
    assert len(wanted.names()) == 1


def test_the_message_names_clients_and_alternatives() -> None:
    many = [replace(PLAIN, name=str(k)) for k in range(7)]
    odd = replace(OTHER["same_features"], name="7")
    with pytest.raises(InputError) as refusal:
        check("FedThing", Needs(same_features=True), [*many, odd], lambda: ["works", "too"])
    assert str(refusal.value) == (
        "FedThing needs one feature width, but clients 0, 1, 2, 3, 4 and 2 more have cnn with 3 features; client 7 "
        "has cnn with 7 features; set models.feature_dim. Methods that would work: works, too."
    )


def test_pictures_are_needed_of_every_client() -> None:
    rows = [replace(PLAIN, name=name, input_shape=(30,)) for name in "01"]
    with pytest.raises(InputError) as refusal:
        check("FedThing", Needs(images=True), rows, list)
    assert str(refusal.value) == (
        "FedThing needs samples that are pictures, but clients 0, 1 have samples of shape 30; use a method that does "
        "not decode pictures."
    )


def test_tokens_are_no_numbers() -> None:
    with pytest.raises(InputError) as refusal:
        check("FedThing", Needs(numbers=True), [PLAIN, replace(PLAIN, name="1", tokens=True)], list)
    assert str(refusal.value) == (
        "FedThing needs samples that are numbers (pictures, series or tables), but client 1 has samples that are "
        "tokens of a text; use a method that does not decode samples."
    )


def test_met_requirements_are_accepted() -> None:
    check("FedThing", Needs(True, True, True, True), [PLAIN], list)
