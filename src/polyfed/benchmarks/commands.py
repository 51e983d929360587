"""Commands that benchmarks start as processes of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def run_command(command: Sequence[str], environment: Mapping[str, str] | None = None, exit_code: int = 0) -> str:
    """Run a command and return what it printed. Raise an error for another exit code."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != exit_code:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout
