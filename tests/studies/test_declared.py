"""What the owner of a study declares: who gets the release, and the audit before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import vestige
from vestige.attacks import DeepLeakage
from vestige.errors import BadInput
from vestige.studies.declared import declarations, previous_digest
from worlds import small_audit


def test_a_report_names_the_audit_before_and_its_context(tmp_path: Path) -> None:
    audit = replace(small_audit([DeepLeakage(iterations=2)]), trials=1)
    first = vestige.run(audit, directory=tmp_path / "first")
    assert (first.findings.release_context, first.findings.previous) == (None, "")
    digest = json.loads((tmp_path / "first" / "report.json").read_text())["digest"]
    for previous in (tmp_path / "first", str(tmp_path / "first" / "report.json"), digest):
        assert previous_digest(previous) == digest
    later = replace(audit, release_context="public weights", previous=str(tmp_path / "first"))
    assert later.identity() == audit.identity(), "a declaration decides no result"
    # The folder of the first run goes on: only the report changes.
    second = vestige.run(later, directory=tmp_path / "first")
    assert second.findings.release_context == "public weights"
    assert second.findings.previous == digest
    assert second.findings.attacks == first.findings.attacks


@pytest.mark.parametrize("context", ["public", "Public weights", 3, True])
def test_another_context_is_refused_with_the_choices(context: object) -> None:
    with pytest.raises(BadInput, match="'public weights', 'public interface', 'partners' or"):
        replace(small_audit([DeepLeakage(iterations=2)]), release_context=context)
    with pytest.raises(BadInput, match="'partners' or 'internal'"):
        declarations(SimpleNamespace(release_context=context))


def test_a_study_of_another_package_need_not_declare() -> None:
    assert declarations(object()) == {"release_context": None, "previous": ""}


def test_an_audit_before_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("[]")
    for previous in (tmp_path, tmp_path / "nowhere", "no digest"):
        with pytest.raises(BadInput, match="The audit named by previous cannot be read"):
            previous_digest(previous)
    with pytest.raises(BadInput, match="give the run folder"):
        previous_digest(3)  # pyright: ignore[reportArgumentType]


def test_a_study_around_an_audit_declares_what_the_audit_does():
    inner = SimpleNamespace(release_context="partners", previous="a" * 64)
    assert declarations(SimpleNamespace(audit=inner)) == vars(inner)
    own = SimpleNamespace(audit=inner, release_context="internal", previous=None)
    assert declarations(own) == {"release_context": "internal", "previous": "a" * 64}
