"""Checks of a method's declarations: its fields, requirements (`needs`) and messages (`sends`)."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from polyfed.core import needs as needs_room
from polyfed.core.message_header import read_header
from polyfed.errors import InputError
from polyfed.testing.battery import check
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

# For each requirement, two models that violate exactly this one.
VIOLATIONS: dict[str, list[Any]] = {
    "same_architecture": ["tiny-cnn", "tiny-mlp"],
    "same_head": ["tiny-cnn", {"name": "tiny-cnn", "head": "relu-16"}],
    "same_features": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}],
}


@check
def frozen_dataclass_of_json_fields(toy: ToyFederation) -> None:
    """A method cannot hold state: it is frozen, and its fields are JSON values with defaults."""
    parameters = getattr(toy.method, "__dataclass_params__", None)
    assert getattr(parameters, "frozen", False), (
        f"{toy.method.__name__} is not a frozen dataclass, so it could hold state"
    )
    for field in dataclasses.fields(toy.method):
        assert field.default is not dataclasses.MISSING, f"the field '{field.name}' has no plain default"
    fields = dataclasses.asdict(toy.method(**toy.fields))
    try:
        decoded = json.loads(json.dumps(fields))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the fields are not JSON values: {error}") from None
    assert decoded == fields, "a field changes if it is encoded as JSON (use lists instead of tuples)"
    extra = {name for name in vars(toy.method(**toy.fields)) if name not in fields}
    assert not extra, f"the method has the attribute '{sorted(extra)[0]}', which is not one of its fields"


@check
def non_slices_refused(toy: ToyFederation) -> None:
    """A method for slices of one server model refuses other models before anything is written."""
    folder = toy.new_folder()
    if not toy.method.needs.sub_models:
        return
    try:
        toy.experiment(toy.settings(CLASS_COUNTS[:2], models={"group": ["tiny-cnn", "tiny-mlp"]}, rounds=1), folder)
    except InputError as refusal:
        message = str(refusal)
        assert "is no sub-model of" in message, f"the error does not say what is wrong: {message}"
    else:
        raise AssertionError("models that are not slices of one model were accepted")
    assert not folder.exists(), "the run folder was created before the models were refused"


@check
def needs_checked_before_round_one(toy: ToyFederation) -> None:
    """A violated requirement is refused before anything is written. Without the requirement, the models work."""
    for requirement, models in VIOLATIONS.items():
        settings = toy.settings(CLASS_COUNTS[:2], models={"group": models}, rounds=1)
        roster = toy.federation(toy.config(CLASS_COUNTS[:2], models={"group": models})).profiles()
        if needs_room.violated(toy.method.needs, roster) is None:
            if not toy.method.needs.sub_models:
                toy.experiment(settings)
            continue
        folder = toy.new_folder()
        try:
            toy.experiment(settings, folder)
        except InputError as refusal:
            message = str(refusal)
            assert "client 0" in message and "client 1" in message, f"the error does not name two clients: {message}"
        else:
            raise AssertionError(f"clients that violate the requirement '{requirement}' were accepted")
        assert not folder.exists(), f"the run folder was created before the requirement '{requirement}' was checked"


@check
def same_classes_checked(toy: ToyFederation) -> None:
    """A method that requires one label space refuses clients with different numbers of classes."""
    first, second, *_ = toy.federation(toy.config()).profiles()
    roster = [first, dataclasses.replace(second, classes=second.classes + 1)]
    only = needs_room.Needs(same_classes=toy.method.needs.same_classes)
    refused = needs_room.violated(only, roster) is not None
    assert refused == toy.method.needs.same_classes, (
        "the check does not match the method's declaration of `same_classes`"
    )


@check
def sends_matches_messages(toy: ToyFederation) -> None:
    """`sends` describes exactly the directions in which the method sends fields."""
    reference = toy.reference()
    for direction, messages in (("up", reference.up), ("down", reference.down)):
        fields = {name for message in messages for frame in message.frames for name in read_header(frame).sizes()}
        declared = getattr(toy.method.sends, direction)
        assert bool(fields) == (declared != "nothing"), (
            f"sends.{direction} is '{declared}', but the fields sent are {', '.join(sorted(fields)) or 'nothing'}"
        )
