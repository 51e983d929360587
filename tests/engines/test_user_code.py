"""Models and methods of a script or a notebook reach every worker, or the run is refused with one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm_processes

import polyfed

MODELS = """
import polyfed
from torch import nn

HIDDEN = 12

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))

class Wide(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(64, 2 * HIDDEN)
        self.head = nn.Linear(2 * HIDDEN, classes)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())
"""
REGISTER = """
polyfed.models.register("A", net, head="3")
polyfed.models.register("B", Wide, head="head")
"""
METHOD = '''
from dataclasses import dataclass
from polyfed.core import Method, Needs, Sends, register, step

@register("own-training")
@dataclass(frozen=True)
class OwnTraining(Method):
    """Clients train."""
    passes: int = 1
    needs = Needs()
    sends = Sends()

    def round(self, server, cohort):
        cohort.call(self.train)

    @step()
    def train(self, client, msg):
        for _ in range(self.passes):
            client.fit()
'''
SETTINGS = (
    'clients=4, rounds=2, models={"group": ["A", "B"]}, evaluate={"global": False}, '
    'data={"limit": 200, "partition": {"scheme": "iid"}}'
)
RUN = f"""
import json, sys
for engine in ("serial", "pool"):
    result = polyfed.run("quickstart", {SETTINGS}, engine={{"name": engine, "workers": "auto"}}, out=engine, METHOD)
    print(json.dumps(result))
"""


def start(
    folder: Path, *command: str, stdin: str | None = None, forked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that is forked from a warm one, or else in a new interpreter."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("POLYFED_W")}
    if forked:
        return warm_processes.run(*command, cwd=folder, env=environment, input=stdin)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, input=stdin, capture_output=True, text=True
    )


def results_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def assert_equal_on_both_engines(done: subprocess.CompletedProcess[str]) -> None:
    serial, pool = results_of(done)
    assert serial["failures"] == pool["failures"] == []
    assert None not in pool["accuracy"]["personal"]["by_client"]
    for same in ("state_hash", "accuracy", "config_hash"):
        assert serial[same] == pool[same]


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("guarded", ["nothing", "the run", "registration and run"])
def test_models_of_a_script_reach_the_workers(tmp_path: Path, guarded: str) -> None:
    run = RUN.replace("METHOD", 'method="local"')
    if guarded == "nothing":
        script = MODELS + REGISTER + run
    elif guarded == "the run":
        script = MODELS + REGISTER + "if __name__ == '__main__':\n" + indented(run)
    else:
        script = MODELS + "if __name__ == '__main__':\n" + indented(REGISTER + run)
    (tmp_path / "train.py").write_text(script)
    assert_equal_on_both_engines(start(tmp_path, "train.py", forked=guarded != "nothing"))


def test_a_method_of_a_script_is_found_by_its_name(tmp_path: Path) -> None:
    run = RUN.replace("METHOD", 'method={"name": "own-training", "passes": 2}')
    (tmp_path / "train.py").write_text(MODELS + REGISTER + METHOD + run)
    assert_equal_on_both_engines(start(tmp_path, "train.py"))


def test_models_of_an_imported_module_reach_the_workers(tmp_path: Path) -> None:
    (tmp_path / "networks.py").write_text(MODELS)
    script = "import polyfed\nfrom networks import Wide, net\n" + REGISTER + RUN.replace("METHOD", 'method="local"')
    (tmp_path / "train.py").write_text(script)
    assert_equal_on_both_engines(start(tmp_path, "train.py"))


def test_a_module_started_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "networks.py").write_text(MODELS)
    script = "import polyfed\nfrom .networks import net, Wide\n" + REGISTER + METHOD
    run = "if __name__ == '__main__':\n" + indented(RUN.replace("METHOD", "method=OwnTraining(passes=2)"))
    (tmp_path / "study" / "train.py").write_text(script + run)
    assert_equal_on_both_engines(start(tmp_path, "-m", "study.train"))


# Cells as Jupyter runs them: compiled under a name of their own, with their text in `linecache`, in a `__main__`
# without a file.
NOTEBOOK = """
import json, linecache, sys
for number, text in enumerate(json.load(sys.stdin)):
    name = f"<ipython-input-{number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), globals())
"""


def notebook(folder: Path, *cells: str, forked: bool = True) -> subprocess.CompletedProcess[str]:
    return start(folder, "-c", NOTEBOOK, stdin=json.dumps(cells), forked=forked)


def test_models_and_methods_of_a_notebook_reach_the_workers(tmp_path: Path) -> None:
    run = RUN.replace("METHOD", "method=OwnTraining(passes=2)")
    assert_equal_on_both_engines(notebook(tmp_path, MODELS, REGISTER, METHOD, run, forked=False))
    assert "class Wide(nn.Module)" in (tmp_path / "pool" / "user_code.py").read_text()


def test_lambdas_and_partial_functions_of_a_notebook(tmp_path: Path) -> None:
    register = """
from functools import partial
def sized(shape, classes, units):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Linear(units, classes))
polyfed.models.register("A", lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes)), head="1")
polyfed.models.register("B", partial(sized, units=7), head="2")
"""
    assert_equal_on_both_engines(notebook(tmp_path, MODELS, register, RUN.replace("METHOD", 'method="local"')))


def test_a_stopped_run_of_a_notebook_is_resumed_by_the_command_line(tmp_path: Path) -> None:
    run = RUN.replace("METHOD", 'method="own-training"')
    whole = results_of(notebook(tmp_path, MODELS, REGISTER, METHOD, run))
    for left in ("result.json", "checkpoint"):
        (tmp_path / "pool" / left).rename(tmp_path / left)
    done = start(tmp_path, "-m", "polyfed", "resume", "pool", "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state_hash"] == whole[0]["state_hash"]


def test_what_cannot_be_sent_is_refused_in_one_sentence(tmp_path: Path) -> None:
    uses_tensor = """
import torch
start = torch.ones(3)
def odd(shape, classes):
    return nn.Linear(len(start), classes)
polyfed.models.register("A", odd, head="")
"""
    run = f"polyfed.run('quickstart', {SETTINGS}, out='refused')"
    done = notebook(tmp_path, MODELS, REGISTER, uses_tensor, run)
    last = done.stderr.splitlines()[-1]
    assert "InputError: the model 'A' uses the variable 'start', a Tensor, which cannot be sent to workers" in last
    assert "put the code into a file and name the file in imports, or set engine.name: serial" in last
    assert not (tmp_path / "refused").exists()


def test_a_session_without_source_is_refused(tmp_path: Path) -> None:
    run = f"polyfed.run('quickstart', {SETTINGS}, out='refused')"
    done = start(tmp_path, "-c", MODELS + REGISTER + run)
    assert "InputError: the source of the model 'A' cannot be read" in done.stderr.splitlines()[-1]


def test_a_model_that_changes_between_runs_is_refused(tmp_path: Path) -> None:
    """Workers import a script up to its first run, so they do not see what it registers later."""
    script = (
        MODELS
        + REGISTER
        + f"""
for units in (4, 8):
    polyfed.models.register(
        "A",
        lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Linear(units, classes)),
        head="2",
    )
    polyfed.run("quickstart", {SETTINGS}, method="local", out=f"run-{{units}}")
"""
    )
    (tmp_path / "train.py").write_text(script)
    done = start(tmp_path, "train.py")
    assert (tmp_path / "run-4" / "result.json").exists()
    assert "the model 'A' differs between the main process and its workers" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run-8" / "result.json").exists()


def test_a_method_inside_of_a_function_is_refused() -> None:
    from polyfed.core import Method

    class Nameless(Method):
        """Its class is in a function."""

    with pytest.raises(polyfed.errors.InputError, match="the method Nameless is defined inside of a function"):
        polyfed.run("quickstart", method=Nameless)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_redefined_class_of_a_notebook_is_refused_until_force(tmp_path: Path, engine: str) -> None:
    run = f"""
import json
def start(**more):
    try:
        more |= {{"method": "own-training", "engine": {{"name": "{engine}"}}}}
        result = polyfed.run("quickstart", {SETTINGS}, out="r", **more)
        print(json.dumps(result))
    except polyfed.errors.InputError as error:
        print(json.dumps({{"refused": str(error)}}))
"""
    redefined = METHOD.replace("client.fit()", "client.fit(epochs=2)")
    again = "start()\nstart(force=True)\nstart()"
    first, refused, second, same = results_of(
        notebook(tmp_path, MODELS, REGISTER, METHOD, run, "start()", redefined, again)
    )
    assert (
        "the code of the run in r has changed: the code of the session has changed (OwnTraining)"
        in refused["refused"]
    )
    assert "force=True" in refused["refused"] and "r.old-1" in refused["refused"]
    assert first["state_hash"] != second["state_hash"] == same["state_hash"]
    assert first["config_hash"] != second["config_hash"]
    old = json.loads((tmp_path / "r.old-1" / "result.json").read_text())
    assert old["state_hash"] == first["state_hash"]


def test_code_that_cannot_be_sent_identifies_a_serial_run(tmp_path: Path) -> None:
    """A model of a session without source: its compiled code is compared."""
    run = f"""
def start():
    try:
        result = polyfed.run("quickstart", {SETTINGS}, method="local", engine={{"name": "serial"}}, out="r")
        return result["state_hash"]
    except polyfed.errors.InputError as error:
        return str(error)
first, same = start(), start()
polyfed.models.register("A", Wide, head="head")
print(json.dumps([first, same, start()]))
"""
    done = start(tmp_path, "-c", "import json\n" + MODELS + REGISTER + run)
    assert done.returncode == 0, done.stderr
    first, same, refused = json.loads(done.stdout)
    assert first == same and "the code of the session has changed;" in refused
