"""`polyfed list`, help texts and the Python API: documented fields, and no heavy imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from polyfed.cli.app import main

FIELDS = {
    "methods": {"name", "title", "paper", "requires", "sends_up", "sends_down", "options", "verdict", "upload_kinds"},
    "models": {"name", "params", "extractor_params", "feature_dim", "flops", "input"},
    "groups": {"name", "members"},
    "datasets": {"name", "shape", "classes", "train", "test", "available"},
    "partitions": {"name", "description", "options"},
    "presets": {"name", "title", "description", "method", "dataset"},
    "uploads": {"name", "description", "methods"},
}


def listed(kind: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["list", kind, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


@pytest.mark.parametrize("kind", FIELDS)
def test_json_has_the_promised_fields_and_the_table_every_name(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(kind, capsys)
    assert rows and all(set(row) == FIELDS[kind] for row in rows)
    assert main(["list", kind]) == 0
    out, err = capsys.readouterr()
    words = out.split()
    assert err == "" and all(row["name"] in words for row in rows)


def test_details_of_fedproto(capsys: pytest.CaptureFixture[str]) -> None:
    (fedproto,) = [row for row in listed("methods", capsys) if row["name"] == "fedproto"]
    assert fedproto["requires"] == ["same_features", "same_classes"]
    assert fedproto["sends_up"] == "mean feature per class, with counts"
    assert "AAAI 2022" in fedproto["paper"]
    (guidance,) = [option for option in fedproto["options"] if option["name"] == "guidance"]
    assert set(guidance) == {"name", "type", "default", "help", "bounds"}
    assert (guidance["type"], guidance["default"]) == ("float", 1.0) and guidance["help"].startswith("lambda")


def test_groups_datasets_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {row["name"]: row["members"] for row in listed("groups", capsys)}
    assert groups["tiny4"] == ["tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp"]
    (digits,) = [row for row in listed("datasets", capsys) if row["name"] == "digits"]
    assert digits["available"] is True and digits["shape"] == [1, 8, 8]
    presets = {row["name"]: row["description"] for row in listed("presets", capsys)}
    assert "20 clients" in presets["quickstart"] and all(presets.values())


def test_every_preset_is_a_config_whose_method_and_models_exist() -> None:
    from polyfed import catalogue
    from polyfed.config import parse
    from polyfed.config.loading import preset_names, read_source
    from polyfed.data.catalogue import KNOWN
    from polyfed.data.partition_settings import settings_of
    from polyfed.federation.model_assignment import assign_models

    for name in preset_names():
        config = parse(read_source(name), name)
        assert catalogue.make(config.method).name == config.method["name"]
        assert len(assign_models(config)) == config.clients
        assert config.data.dataset in KNOWN and settings_of(config.data.partition)[0]


HEAVY = {"torch", "pydantic", "sklearn", "scipy", "datasets", "pyarrow"}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import polyfed; assert polyfed.__version__; dir(polyfed)", HEAVY | {"numpy", "yaml"}),
        ("main(['--help'])", HEAVY | {"numpy"}),
        ("main(['list', 'methods'])", HEAVY),
        ("main(['list', 'datasets'])", HEAVY),
        ("main(['list', 'partitions']), main(['list', 'presets'])", HEAVY),
    ],
)
def test_light_commands_import_nothing_heavy(code: str, forbidden: set[str]) -> None:
    start = "" if code.startswith("import") else "from polyfed.cli.app import main; "
    script = f"{start}{code}; import sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) & forbidden == set()


def test_the_python_api() -> None:
    import polyfed
    from polyfed.core.method import register

    assert polyfed.register is register
    assert callable(polyfed.run) and callable(polyfed.resume) and callable(polyfed.compare)
    assert polyfed.models.register.__name__ == "register"
    assert issubclass(polyfed.errors.InputError, polyfed.errors.PolyfedError)
    assert set(polyfed.__all__) <= set(dir(polyfed))
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        polyfed.runn  # noqa: B018


def all_commands() -> Iterator[tuple[str, Any]]:
    """Every command and subcommand, by the words that call it."""
    from polyfed.cli.commands import build_command

    groups: list[tuple[str, Any]] = [("polyfed", build_command())]
    while groups:
        path, group = groups.pop()
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                groups.append((f"{path} {name}", command))
            else:
                yield f"{path} {name}", command


def test_every_command_explains_its_arguments_and_gives_an_example() -> None:
    commands = dict(all_commands())
    assert {"polyfed run", "polyfed sweep", "polyfed new method", "polyfed keys new site"} <= commands.keys()
    for path, command in commands.items():
        assert command.help and f"Example: {path}" in command.help, path
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "polyfed 0.1.0\n"
    for arguments in ([], ["--help"], ["run", "--help"]):
        assert main(arguments) == 0
        assert "Usage: polyfed" in capsys.readouterr().out
