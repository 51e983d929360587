"""The exported form of a trained model: a folder with standard safetensors files and a JSON description.

`model.safetensors` has the weights, `predictor.safetensors` what else the method's predictions need, such as class
prototypes, and `model.json` the rest. Nothing is pickled, and loading runs no code that the folder holds or names
unless the caller trusts it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from polyfed import catalogue
from polyfed.config.trust import REMEDY
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client, weights_of
from polyfed.core.client_profile import Profile, layout
from polyfed.core.method import Method
from polyfed.core.method import registered as registered_methods
from polyfed.core.payload import Payload, State, Value
from polyfed.data.arrays import KINDS
from polyfed.data.catalogue import Format, read_tokenizer
from polyfed.errors import InputError, PolyfedError
from polyfed.federation.user_imports import import_user_modules
from polyfed.models import ModelSpec, SplitModel, build, names
from polyfed.models.weight_files import WEIGHTS, load_weights, read_tensors
from polyfed.runs.atomic_files import write_atomically
from polyfed.trained.client import Origin, TrainedClient
from polyfed.training import Samples, TrainSettings

FORMAT_VERSION = 1
DESCRIPTION = "model.json"
PREDICTOR = "predictor.safetensors"
USER_CODE = "user_code.py"
TOKENIZER = "tokenizer.json"
SITE_MODEL = "model"  # folder of the trained model in the run folder of a site
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}


def is_model_folder(path: Path) -> bool:
    """Return whether a folder holds an exported model."""
    return (path / DESCRIPTION).is_file()


def write_model(trained: TrainedClient, folder: Path) -> None:
    """Write a trained model to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / WEIGHTS, safetensors.torch.save(_contiguous(trained.model)))
    state = _used_state(trained)
    tensors, others = _flatten(state)
    if tensors:
        write_atomically(folder / PREDICTOR, safetensors.torch.save(tensors))
    if trained.format.tokenizer is not None:
        write_atomically(folder / TOKENIZER, read_tokenizer(trained.format.tokenizer).encode())
    if trained.origin.user_code:
        write_atomically(folder / USER_CODE, trained.origin.user_code.encode())
    description = _describe(trained, tensors, others)
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1).encode())


def read_model(folder: Path, *, trust: bool = False) -> TrainedClient:
    """Load a model that `write_model` wrote. With `trust`, import the code that it names."""
    file, entries = folder / DESCRIPTION, _read_description(folder)
    try:
        if entries["format"] != FORMAT_VERSION:
            raise InputError(f"{file} has format {entries['format']}; this release reads format {FORMAT_VERSION}")
        _check_registered(folder, entries, trust)
        return _read(folder, entries)
    except PolyfedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_ours(file, error) from None


def described_client(folder: Path) -> tuple[int, str]:
    """Return number and name of the client whose model a folder holds."""
    entries = _read_description(folder)
    try:
        return int(entries["number"]), str(entries["client"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder / DESCRIPTION} is not a description that polyfed export wrote: {error!r}"
        ) from None


def _not_ours(file: Path, error: Exception) -> InputError:
    return InputError(f"{file} is not a description that polyfed export wrote: {error!r}")


def _read_description(folder: Path) -> Any:
    file = folder / DESCRIPTION
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None


def _contiguous(model: SplitModel) -> dict[str, Tensor]:
    """Return copies of the weights in the memory layout that safetensors needs."""
    return {name: tensor.contiguous() for name, tensor in weights_of(model).items()}


def _describe(trained: TrainedClient, tensors: Mapping[str, Tensor], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `model.json`."""
    spec, origin = trained.spec, trained.origin
    uses_head = type(trained.method).predict is Method.predict
    return {
        "format": FORMAT_VERSION,
        "client": trained.name,
        "number": trained.client.profile.position,
        "architecture": trained.architecture,
        "model": spec.to_json(),
        "code": {
            "build": "polyfed.models.build(ModelSpec.from_json(model), shape=input.shape, classes=len(classes))",
            "imports": list(origin.imports),
            "user_code": USER_CODE if origin.user_code else None,
        },
        "input": {
            "kind": trained.kind,
            "dtype": _DTYPES[trained.kind],
            "shape": list(trained.shape),
            "vocabulary": trained.vocabulary,
            "columns": list(trained.features),
            "conversion": "float32, divided by 255" if trained.kind == "picture" else "none",
        },
        "normalisation": {
            "mean": list(spec.mean),
            "std": list(spec.std),
            "part_of_the_model": True,
        },
        "classes": list(trained.classes),
        "prediction": {
            "rule": "argmax of the model's logits" if uses_head else "argmax of the method's scores",
            "probabilities": "softmax of the logits" if uses_head else "softmax of the method's scores",
            "method": dict(origin.method),
            "tensors": {name: list(tensor.shape) for name, tensor in tensors.items()},
            **others,
        },
        "files": {**dataclasses.asdict(trained.format), "tokenizer": TOKENIZER if trained.format.tokenizer else None},
        "trained": {**origin.trained, "client_seed": trained.client.seed},
    }


def _read(folder: Path, entries: Mapping[str, Any]) -> TrainedClient:
    spec = ModelSpec.from_json(entries["model"])
    prediction, code = entries["prediction"], entries["code"]
    shape, classes = tuple(int(n) for n in entries["input"]["shape"]), tuple(map(str, entries["classes"]))

    def new_model(text: str) -> SplitModel:
        model = build(ModelSpec.parse(text), shape=shape, classes=len(classes))
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    model = new_model(spec.text)
    load_weights(model, read_tensors(folder / WEIGHTS), str(folder / WEIGHTS))
    model.eval()
    predictor = folder / PREDICTOR
    state = _nest(read_tensors(predictor) if predictor.exists() else {}, prediction)
    name = str(entries["client"])
    profile = Profile(
        name,
        str(entries["architecture"]),
        layout(model),
        layout(model.head),
        model.feature_dim,
        len(classes),
        0,
        spec.text,
        frozenset(buffer for buffer, _ in model.named_buffers()),
        int(entries["number"]),
        shape,
        spec.vocabulary is not None,
    )
    none = Samples(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64))
    client = Client(profile, model, none, none, TrainSettings(), state, build=new_model)
    client.seed = int(entries["trained"]["client_seed"])
    return TrainedClient(
        name=name,
        classes=classes,
        shape=shape,
        kind=str(entries["input"]["kind"]),
        vocabulary=int(entries["input"]["vocabulary"]),
        features=tuple(map(str, entries["input"]["columns"])),
        spec=spec,
        format=_format(folder, entries["files"]),
        origin=Origin(prediction["method"], tuple(code["imports"]), "", entries["trained"]),
        method=catalogue.make(prediction["method"]),
        client=client,
    )


def _format(folder: Path, entries: Mapping[str, Any]) -> Format:
    """Return how files of samples are read. The tokenizer is the exported one."""
    found = Format(**entries)
    return found if found.tokenizer is None else dataclasses.replace(found, tokenizer=str(folder / TOKENIZER))


def _check_registered(folder: Path, entries: Mapping[str, Any], trust: bool) -> None:
    """Raise `InputError` if the model or the method is not registered. With `trust`, import their code first."""
    code, missing = entries["code"], _missing(entries)
    sources = [*map(str, code["imports"]), *([str(folder / USER_CODE)] if code["user_code"] else [])]
    if missing and trust:
        import_user_modules(sources, again=True)
        missing = _missing(entries)
    if missing:
        what, call = missing
        where = f"; its code is in {' or '.join(sources)}: {REMEDY}" if sources else ""
        raise InputError(
            f"{what} of {folder} is not one of polyfed's; register it before you load the model, with {call}{where}"
        )


def _missing(entries: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the model or method that is not registered, and the call that registers it."""
    model, method = ModelSpec.from_json(entries["model"]).name, str(entries["prediction"]["method"]["name"])
    if model not in names():
        return f"the model '{model}'", f"polyfed.models.register('{model}', ...)"
    if catalogue.find_method(method) is None and method not in registered_methods():
        return f"the method '{method}'", f"@polyfed.register('{method}')"
    return None


# what predictions read from the client's state


class _RecordedState(Payload):
    """A client's state that records which of its fields are read."""

    def __init__(self, fields: Mapping[str, Value]) -> None:
        super().__init__(fields)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        value = super().__getitem__(name)
        self.used.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        self.used.update(self._fields)
        return super().__iter__()


def _used_state(trained: TrainedClient) -> State:
    """Return the part of the client's state that a prediction reads. The rest may be large, and stays private."""
    client = trained.client
    recorded = _RecordedState(client.state)
    dtype = getattr(torch, _DTYPES[trained.kind])
    probe = dataclasses.replace(client, state=recorded)  # type: ignore[arg-type]
    dataclasses.replace(trained, client=probe).scores(torch.zeros(2, *trained.shape, dtype=dtype))
    return {name: client.state[name] for name in sorted(recorded.used)}


def _flatten(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a state by path, and the rest as JSON. A class table becomes two or three tensors."""
    tensors: dict[str, Tensor] = {}
    tables: list[str] = []
    scalars: dict[str, Any] = {}

    def walk(path: str, value: object) -> None:
        if isinstance(value, Tensor):
            tensors[path] = value.detach().clone().contiguous()
        elif isinstance(value, ClassTable):
            tables.append(path)
            tensors[path] = value.values.detach().clone().contiguous()
            tensors[f"{path}#classes"] = value.classes.clone()
            if value.counts is not None:
                tensors[f"{path}#counts"] = value.counts.clone()
        elif isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{path}/{key}", item)
        else:
            scalars[path] = value

    for name, value in state.items():
        walk(name, value)
    return tensors, {"tables": tables, "values": scalars}


def _nest(tensors: Mapping[str, Tensor], prediction: Mapping[str, Any]) -> State:
    """Return the state of `_flatten`."""
    flat: dict[str, Value] = {path: tensor for path, tensor in tensors.items() if "#" not in path}
    for path in prediction["tables"]:
        flat[path] = ClassTable(tensors[f"{path}#classes"], tensors[path], tensors.get(f"{path}#counts"))
    flat.update(prediction["values"])
    state: State = {}
    for path, value in flat.items():
        *folders, leaf = path.split("/")
        node: dict[str, Any] = state
        for part in folders:
            node = node.setdefault(part, {})
        node[leaf] = value
    return state
