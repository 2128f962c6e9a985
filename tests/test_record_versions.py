"""Older Records are read as today's, newer ones refused; the schema in docs/ is the code's."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from report.states import STATES
from vestige.errors import BadInput
from vestige.pages import render_again
from vestige.record import SCHEMA_VERSION, CheckOutcome, Record, VerdictKind
from vestige.record_versions import FROM_PRIOR, record_schema
from vestige.store import load_record, record_bytes

ROOT = Path(__file__).parent.parent

FIRST = {
    "schema_version": 1,
    "title": "Faces",
    "release": "a shared gradient",
    "space": {"kind": "image", "shape": [1, 2, 2], "noun": "face", "class_names": ["a"]},
    "threat": {
        "attacker": "honest-but-curious server",
        "who": "A server.",
        "sees": "One gradient.",
        "told": "The model.",
        "not_told": "The records.",
        "prior": "40 others.",
    },
    "seed": 3,
    "trials_planned": 2,
    "trials_finished": 2,
    "batch_size": 1,
    "decoys": 99,
    "false_positive_rate": 0.01,
    "confidence": 0.95,
    "distance": "mean squared error",
    "nearest_neighbor_distance": 0.1,
    "prior_public": True,
    "claim": None,
    "attacks": [
        {
            "name": "Deep Leakage",
            "summary": "matches gradients",
            "cites": "Zhu et al. 2019",
            "guess": False,
            "settings": {"iterations": "60"},
            "outcomes": [
                {
                    "trial": trial,
                    "rank": 1,
                    "distance": 0.01,
                    "decoy_distance": 0.2,
                    "nearest_decoy": 0.1,
                    "swapped_rank": 50,
                    "mse": 0.01,
                    "psnr": 20.0,
                    "ssim": 0.9,
                    "label_accuracy": 1.0,
                    "objective": 0.001,
                    "confidence": None,
                    "diverged": False,
                }
                for trial in (0, 1)
            ],
            "rate": {"hits": 2, "trials": 2, "lower": 0.22, "upper": 1.0},
            "swapped": {"hits": 0, "trials": 2, "lower": 0.0, "upper": 0.78},
            "curve": [],
            "pooled": None,
            "remarks": [],
        }
    ],
    "candidates": [],
    "exhibits": [],
    "checks": [{"outcome": "passed", "sentence": "The recomputed gradient agrees.", "remedy": ""}],
    "limits": ["Misses are not protected records."],
    "settings": {},
    "environment": {},
    "redacted": False,
    "verdict": {
        "kind": "DEMONSTRATED",
        "headline": "Faces come back.",
        "lede": "All of them.",
        "attack": "Deep Leakage",
        "remedy": "",
    },
    "times": {"started": "", "finished": "", "cpu_seconds": 1.0, "seconds_per_trial": {}},
}
"""A Record as the first version of ``record.py`` in the history wrote it, field by field."""


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    return path


def test_the_first_format_is_read_judged_and_rendered(tmp_path):
    record = load_record(written(tmp_path, FIRST))
    assert record.schema_version == SCHEMA_VERSION
    assert record.attacks[0].outcomes[1].psnr == 20.0
    assert record.limits == (FROM_PRIOR, "Misses are not protected records.")
    again, page = render_again(tmp_path / "record.json", None)
    assert again.verdict.kind is VerdictKind.DEMONSTRATED
    assert "The recomputed gradient agrees." in page.read_text()
    assert "attacker&#39;s prior" in page.read_text()


def test_what_had_failed_in_the_first_format_stays_failed(tmp_path):
    failed = {"outcome": "failed", "sentence": "The gradient is another's.", "remedy": "Look."}
    path = written(tmp_path, {**FIRST, "checks": [failed]})
    again, _ = render_again(path, None)
    assert again.verdict.kind is VerdictKind.INVALID
    assert again.checks[0].outcome is CheckOutcome.FAILED


def test_later_documents_of_the_first_format_gain_no_doubt_about_their_decoys(tmp_path):
    """They lack the three fields, and their decoys came from the secrets' own pool."""
    record = STATES["demonstrated"]()
    document = {**json.loads(record_bytes(record)), "schema_version": 1}
    assert load_record(written(tmp_path, document)) == record


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 99}, "format 99 by a newer Vestige"),
        ({"schema_version": 0}, "never was"),
        ({"schema_version": -1}, "never was"),
        ({"schema_version": 1, "attacks": "none"}, "damaged or no Record"),
        ({"schema_version": 1, "attacks": [{"outcomes": [3]}]}, "damaged or no Record"),
        ({"schema_version": 1, "checks": 7, "limits": 7}, "damaged or no Record"),
        ({"schema_version": "1"}, "damaged or no Record"),
        ({"schema_version": 2, "prior_public": True}, "damaged or no Record"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, change, said):
    with pytest.raises(BadInput, match=said) as caught:
        load_record(written(tmp_path, {**FIRST, **change}))
    assert "\n" not in str(caught.value)


def test_the_schema_in_the_documents_is_current():
    """If this fails: python scripts/write_schema.py, and look whether the version must rise."""
    script = runpy.run_path(str(ROOT / "scripts" / "write_schema.py"))
    assert script["PLACE"].read_text(encoding="utf-8") == script["schema_text"]()


def test_records_follow_the_schema_and_others_do_not():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(record_schema())
    validator.check_schema(record_schema())
    for build in STATES.values():
        validator.validate(json.loads(build().model_dump_json()))
    assert not validator.is_valid(FIRST)
    whole = json.loads(STATES["demonstrated"]().model_dump_json())
    assert not validator.is_valid({**whole, "news": 1})
    assert not validator.is_valid({**whole, "verdict": {"kind": "FINE"}})
    assert set(record_schema()["properties"]) == set(Record.model_fields)
