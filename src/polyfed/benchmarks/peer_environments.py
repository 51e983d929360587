"""Environments and processes of other libraries, for the benchmark `peers`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import torch

from polyfed.benchmarks.flower_simulation import SWITCHES
from polyfed.data.cache import cache_root
from polyfed.errors import RunError

# packages by library; torch is the one of this process, so that all libraries compute with the same kernels
PACKAGES = {
    "flower": ["flwr[simulation]==1.41.0"],
    "pfl": ["pfl==0.6.0"],
    "htfllib": ["h5py", "scikit-learn"],
}
SCRIPTS = Path(__file__).parent
LAYOUT = 2  # of environments; those of another layout are made again


def python_of(library: str) -> Path:
    """Return the interpreter of a library's environment in the cache folder. Create the environment if needed."""
    folder = cache_root(None) / "peers" / f"{library}-torch-{torch.__version__}"
    python, complete = folder / "bin" / "python", folder / "complete.json"
    if complete.exists() and json.loads(complete.read_text()) == [LAYOUT, *PACKAGES[library]]:
        return python
    venv.create(folder, clear=True, with_pip=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _link_torch(folder / "lib" / version / "site-packages")
    # pip finds the linked torch and does not install another one
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *PACKAGES[library], f"torch=={torch.__version__.partition('+')[0]}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunError(f"the environment of {library} in {folder} cannot be made: {done.stderr.strip()[-300:]}")
    complete.write_text(json.dumps([LAYOUT, *PACKAGES[library]]))
    return python


def _link_torch(site: Path) -> None:
    """Link the torch of this process, and no other package, into the folder of packages of an environment."""
    source = Path(torch.__file__).parent.parent
    for name in {file.parts[0] for file in importlib.metadata.files("torch") or () if file.parts[0] != ".."}:
        (site / name).symlink_to(source / name)


class PeerProcess:
    """Another library in a process of its own, which runs one round for every request and is paused between them."""

    def __init__(self, library: str, script: str, *arguments: str, threads: int | None = 1) -> None:
        environment = {**os.environ, **SWITCHES, "PYTHONPATH": str(SCRIPTS)}
        if library == "htfllib":  # it stores models as pickles, and reads the ones that it has just written
            environment["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
        environment.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self.name = library
        self._errors = Path(arguments[0]) / f"{script}.err"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [python_of(library), "-m", f"peer_scripts.{script}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )

    def ask(self) -> dict[str, float]:
        """Request a round, or the accuracy after it, and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # it may have ended; the error below says why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        for line in self._process.stdout:  # the library may print lines of its own
            if line.startswith('{"seconds"'):
                self._process.send_signal(signal.SIGSTOP)
                answer: dict[str, float] = json.loads(line)
                return answer
        code = self._process.wait()
        raise RunError(f"{self.name} ended with exit code {code}: {self._errors.read_text().strip()[-500:]}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # it may have ended
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
