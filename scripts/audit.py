"""Security audit: bandit on the source, an SBOM of the environment, and known vulnerabilities.

`make lint` runs bandit alone (no arguments). `make audit` runs all three; its tools are installed into an environment
of their own, whose Python runs this script. It fails if bandit finds something that is not in REVIEWED, or if a
package has a known vulnerability.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Findings of medium or high severity that were read, with the reason why they are no problem.
REVIEWED = {
    ("src/polyfed/benchmarks/ui.py", "B310"): "the address is that of a server that the benchmark has started",
    ("src/polyfed/cli/serve.py", "B104"): "a coordinator listens to the outside: that is its purpose",
    ("src/polyfed/data/hub.py", "B615"): "users name the dataset; the cache keeps what was downloaded",
    ("src/polyfed/federation/server_federation.py", "B608"): "a message for users, not SQL",
    ("src/polyfed/report/page.py", "B704"): "the text is escaped before",
    ("src/polyfed/report/page_figures.py", "B704"): "the SVG is written by an XML library",
    ("src/polyfed/report/rendering.py", "B314"): "the XML is what matplotlib has just written",
}


def new_findings(report: Mapping[str, Any]) -> list[str]:
    """Return the findings of a bandit report that have not been reviewed, one line each."""
    return [
        f"{one['filename']}:{one['line_number']} {one['test_id']} {one['issue_text']}"
        for one in report["results"]
        if (one["filename"].removeprefix("./"), one["test_id"]) not in REVIEWED
    ]


def vulnerabilities(report: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the known vulnerabilities in a pip-audit report, one line each, and the number of audited packages."""
    audited = [one for one in report["dependencies"] if "skip_reason" not in one]
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no release'}"
        for one in audited
        for flaw in one["vulns"]
    ]
    return lines, len(audited)


def main(arguments: Sequence[str]) -> int:
    """Run bandit, and the other tools if there are arguments: the Python to audit and the SBOM file to write."""
    tools = Path(sys.executable).parent
    output = _run(str(tools / "bandit"), "-q", "-r", "src", "-ll", "-f", "json").stdout
    findings = new_findings(json.loads(output))
    print("\n".join(findings) or "bandit: nothing new of medium or high severity")
    if not arguments:
        return 1 if findings else 0
    python, sbom = arguments
    _run(str(tools / "cyclonedx-py"), "environment", python, "--pyproject", "pyproject.toml", "-o", sbom, check=True)
    print(f"SBOM (CycloneDX): {sbom}")
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", check=True).stdout.strip()
    audit = _run(str(tools / "pip-audit"), "--path", site, "--format", "json", "--progress-spinner", "off")
    flaws, audited = vulnerabilities(json.loads(audit.stdout)) if audit.stdout else ([], 0)
    if audited:
        print("\n".join(flaws) or f"pip-audit: no known vulnerability in {audited} packages")
    else:
        print("pip-audit: its service cannot be reached, so no package was audited")
    return 1 if findings or flaws else 0


def _run(*command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
