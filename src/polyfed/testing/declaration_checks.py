"""What a method says about itself is true: its fields, its needs, what it sends."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from polyfed.core import needs as needs_room
from polyfed.core.codec import read_header
from polyfed.errors import InputError
from polyfed.testing.battery import check
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

# Two models that differ in exactly what each need is about.
UNLIKE: dict[str, list[Any]] = {
    "same_architecture": ["tiny-cnn", "tiny-mlp"],
    "same_head": ["tiny-cnn", {"name": "tiny-cnn", "head": "relu-16"}],
    "same_features": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}],
}


@check
def frozen_dataclass_of_json_fields(toy: ToyFederation) -> None:
    """A method has no place for state: it is frozen, and its fields are JSON values with defaults."""
    parameters = getattr(toy.method, "__dataclass_params__", None)
    assert getattr(parameters, "frozen", False), (
        f"{toy.method.__name__} is not a frozen dataclass, so it could hide state"
    )
    for field in dataclasses.fields(toy.method):
        assert field.default is not dataclasses.MISSING, f"the field '{field.name}' has no plain default"
    given = dataclasses.asdict(toy.method(**toy.fields))
    try:
        back = json.loads(json.dumps(given))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the fields are not JSON values: {error}") from None
    assert back == given, "a field changes on its way through JSON (use lists instead of tuples)"
    held = {name for name in vars(toy.method(**toy.fields)) if name not in given}
    assert not held, f"the method keeps '{sorted(held)[0]}', which is not one of its fields"


@check
def models_that_are_no_slices_are_refused(toy: ToyFederation) -> None:
    """Where clients must hold slices of one server model, others are refused before anything is written."""
    folder = toy.new_folder()
    if not toy.method.needs.sub_models:
        return
    try:
        toy.experiment(toy.settings(CLASS_COUNTS[:2], models={"group": ["tiny-cnn", "tiny-mlp"]}, rounds=1), folder)
    except InputError as refusal:
        said = str(refusal)
        assert "is no sub-model of" in said, f"the refusal does not say what is wrong: {said}"
    else:
        raise AssertionError("clients whose models are no slices of one were accepted")
    assert not folder.exists(), "the models were refused after the run folder had been made"


@check
def needs_hold_before_round_one(toy: ToyFederation) -> None:
    """A need that is broken is refused before anything is written; without the need the combination runs."""
    for need, models in UNLIKE.items():
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
            said = str(refusal)
            assert "client 0" in said and "client 1" in said, f"the refusal names no two clients: {said}"
        else:
            raise AssertionError(f"clients that break the need '{need}' were accepted")
        assert not folder.exists(), f"the need '{need}' was refused after the run folder had been made"


@check
def one_label_space_where_needed(toy: ToyFederation) -> None:
    """Clients with different numbers of classes are refused by methods that need one label space."""
    first, second, *_ = toy.federation(toy.config()).profiles()
    roster = [first, dataclasses.replace(second, classes=second.classes + 1)]
    only = needs_room.Needs(same_classes=toy.method.needs.same_classes)
    refused = needs_room.violated(only, roster) is not None
    assert refused == toy.method.needs.same_classes, "the need of one label space is not what the method declares"


@check
def sends_says_what_flows(toy: ToyFederation) -> None:
    """`sends` says something exactly for the directions in which fields travel."""
    reference = toy.reference()
    for way, seen in (("up", reference.up), ("down", reference.down)):
        fields = {name for message in seen for frame in message.frames for name in read_header(frame).sizes()}
        words = getattr(toy.method.sends, way)
        assert bool(fields) == (words != "nothing"), (
            f"sends.{way} says '{words}', but what travels {way} is {', '.join(sorted(fields)) or 'nothing'}"
        )
