"""The security audit reports what is new, and says if packages could not be audited."""

from __future__ import annotations

from pathlib import Path

from scripts import audit


def test_reviewed_findings_are_not_reported_again() -> None:
    finding = {"line_number": 7, "issue_text": "a problem"}
    reviewed = [{**finding, "filename": file, "test_id": test} for file, test in audit.REVIEWED]
    new = {**finding, "filename": "src/polyfed/report/page.py", "test_id": "B301"}
    assert audit.new_findings({"results": reviewed}) == []
    assert audit.new_findings({"results": [*reviewed, new]}) == ["src/polyfed/report/page.py:7 B301 a problem"]
    assert all(Path(__file__).parents[1].joinpath(file).is_file() for file, _ in audit.REVIEWED)


def test_skipped_packages_do_not_count_as_audited() -> None:
    flaw = {"id": "CVE-1", "fix_versions": ["2.1"]}
    packages = [
        {"name": "a", "skip_reason": "not found"},
        {"name": "b", "version": "2.0", "vulns": [flaw]},
        {"name": "c", "version": "1.0", "vulns": []},
    ]
    assert audit.vulnerabilities({"dependencies": packages}) == (["b 2.0: CVE-1, fixed in 2.1"], 2)
    assert audit.vulnerabilities({"dependencies": packages[:1]}) == ([], 0)
