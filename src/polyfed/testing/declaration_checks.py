"""What a method says about itself is true: its fields, its needs, what it sends."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from polyfed.core import needs as needs_room
from polyfed.core.codec import read_header
from polyfed.errors import InputError
from polyfed.testing.battery import check
from polyfed.testing.toy_federation import SHARES, Lab

# Two models that differ in exactly what each need is about.
UNLIKE: dict[str, list[Any]] = {
    "same_architecture": ["tiny-cnn", "tiny-mlp"],
    "same_head": ["tiny-cnn", {"name": "tiny-cnn", "head": "relu-16"}],
    "same_features": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}],
}


@check
def frozen_dataclass_of_json_fields(lab: Lab) -> None:
    """A method has no place for state: it is frozen, and its fields are JSON values with defaults."""
    parameters = getattr(lab.method, "__dataclass_params__", None)
    assert getattr(parameters, "frozen", False), (
        f"{lab.method.__name__} is not a frozen dataclass, so it could hide state"
    )
    for field in dataclasses.fields(lab.method):
        assert field.default is not dataclasses.MISSING, f"the field '{field.name}' has no plain default"
    given = dataclasses.asdict(lab.method(**lab.fields))
    try:
        back = json.loads(json.dumps(given))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the fields are not JSON values: {error}") from None
    assert back == given, "a field changes on its way through JSON (use lists instead of tuples)"
    held = {name for name in vars(lab.method(**lab.fields)) if name not in given}
    assert not held, f"the method keeps '{sorted(held)[0]}', which is not one of its fields"


@check
def models_that_are_no_slices_are_refused(lab: Lab) -> None:
    """Where clients must hold slices of one server model, others are refused before anything is written."""
    folder = lab.new_folder()
    if not lab.method.needs.sub_models:
        return
    try:
        lab.experiment(lab.settings(SHARES[:2], models={"group": ["tiny-cnn", "tiny-mlp"]}, rounds=1), folder)
    except InputError as refusal:
        said = str(refusal)
        assert "is no sub-model of" in said, f"the refusal does not say what is wrong: {said}"
    else:
        raise AssertionError("clients whose models are no slices of one were accepted")
    assert not folder.exists(), "the models were refused after the run folder had been made"


@check
def needs_hold_before_round_one(lab: Lab) -> None:
    """A need that is broken is refused before anything is written; without the need the combination runs."""
    for need, models in UNLIKE.items():
        settings = lab.settings(SHARES[:2], models={"group": models}, rounds=1)
        roster = lab.federation(lab.config(SHARES[:2], models={"group": models})).profiles()
        if needs_room.violated(lab.method.needs, roster) is None:
            if not lab.method.needs.sub_models:
                lab.experiment(settings)
            continue
        folder = lab.new_folder()
        try:
            lab.experiment(settings, folder)
        except InputError as refusal:
            said = str(refusal)
            assert "client 0" in said and "client 1" in said, f"the refusal names no two clients: {said}"
        else:
            raise AssertionError(f"clients that break the need '{need}' were accepted")
        assert not folder.exists(), f"the need '{need}' was refused after the run folder had been made"


@check
def one_label_space_where_needed(lab: Lab) -> None:
    """Clients with different numbers of classes are refused by methods that need one label space."""
    first, second, *_ = lab.federation(lab.config()).profiles()
    roster = [first, dataclasses.replace(second, classes=second.classes + 1)]
    only = needs_room.Needs(same_classes=lab.method.needs.same_classes)
    refused = needs_room.violated(only, roster) is not None
    assert refused == lab.method.needs.same_classes, "the need of one label space is not what the method declares"


@check
def sends_says_what_flows(lab: Lab) -> None:
    """`sends` says something exactly for the directions in which fields travel."""
    reference = lab.reference()
    for way, seen in (("up", reference.up), ("down", reference.down)):
        fields = {name for message in seen for frame in message.frames for name in read_header(frame).sizes()}
        words = getattr(lab.method.sends, way)
        assert bool(fields) == (words != "nothing"), (
            f"sends.{way} says '{words}', but what travels {way} is {', '.join(sorted(fields)) or 'nothing'}"
        )
