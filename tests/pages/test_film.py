"""The film strip of the median trial: what it says, and when it is not there."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from vestige.pages import render
from vestige.pages.notebook import notebook_html
from vestige.pages.pictures import data_uri
from vestige.reports.audit import AuditReport, Exhibit, Film
from vestige.reports.files import load_report

from .audits import changed, image_report
from .states import STATES
from .test_render import Reader

STRIP = 'class="reel"'
WORDS = "emerged"


def median(report: AuditReport) -> Exhibit:
    return next(one for one in report.findings.exhibits if one.film)


def strip(page: str) -> str:
    start = page.index(STRIP)
    return page[start : page.index("</ol>", start)]


def with_film(report: AuditReport, film: Film | None) -> AuditReport:
    exhibits = [
        one.model_copy(update={"film": film if one.film else None})
        for one in report.findings.exhibits
    ]
    return changed(report, exhibits=tuple(exhibits))


def test_captions_and_pictures_from_start_to_end() -> None:
    report = STATES["demonstrated"]()
    shown, page = median(report), render(report)
    assert shown.film is not None
    assert shown.reconstruction is not None
    assert page.count(STRIP) == 1
    reader = Reader(f"<div {strip(page)}</ol></div>")
    for text in ("Median trial", "start0 of 1,200", "1%12 of 1,200", "3%36 of 1,200",
                 "10%120 of 1,200", "30%360 of 1,200", "endas returned"):  # fmt: skip
        assert text in reader.text
    images = reader.all("img")
    pictures = [*(one.picture for one in shown.film.frames), shown.reconstruction]
    assert [one["src"] for one in images] == [data_uri(picture) for picture in pictures]


def test_alt_texts_state_role_and_outcome() -> None:
    for name, outcome in (("demonstrated", "closer"), ("not_demonstrated", "not closer")):
        report = STATES[name]()
        report = changed(report, hits=tuple(outcome == "closer" for _ in report.judgement.hits))
        part = strip(render(report))
        alts = [one["alt"] for one in Reader(f"<div {part}</ol></div>").all("img")]
        assert alts == [
            "Reconstruction of the median trial at the start of the search",
            *(
                f"Reconstruction of the median trial after {done} of 1,200 iterations"
                for done in (12, 36, 120, 360)
            ),
            f"Reconstruction of the median trial at the end of the search: {outcome} to the secret "
            "than to all but 1 in 100 decoys",
        ]
        assert 'aria-label="How the reconstruction of the median trial emerged"' in part


@pytest.mark.parametrize(
    ("trials", "name", "label"),
    [(1, "The trial", "of the trial"), (4, "Trial", "of the trial"), (5, "Trial", "of the trial")],
)
def test_few_trials_have_one_strip(trials: int, name: str, label: str) -> None:
    page = render(image_report(trials=trials))
    assert page.count(STRIP) == 1
    part = strip(page)
    assert f"<b>{name}" in part
    assert f"reconstruction {label}" in part
    assert (", the median<" in part) == (trials > 1)


@pytest.mark.parametrize(
    "name",
    [
        "demonstrated",
        "one_trial",
        "few_trials",
        "batches",
        pytest.param("colour", marks=pytest.mark.slow),
    ],
)
def test_redacted_pages_and_documents_have_nothing_of_it(name: str) -> None:
    report = STATES[name]()
    film = median(report).film
    assert film is not None
    hidden = [one.picture.pixels or "" for one in film.frames]
    hidden += [data_uri(one.picture).removeprefix("data:image/png;base64,") for one in film.frames]
    redacted = report.without_secrets()
    assert all(one.film is None for one in redacted.findings.exhibits)
    # A report that only says it is redacted is redacted again before it is shown.
    said = changed(report, redacted=True)
    pages = [render(report, redact=True), render(redacted), render(said)]
    pages += [redacted.model_dump_json(), str(notebook_html(redacted)), str(notebook_html(said))]
    for text in pages:
        assert not any(one in text for one in hidden)
        assert STRIP not in text
        assert WORDS not in text
        assert "1,200 iterations" not in text
    assert any(one in report.model_dump_json() for one in hidden)
    assert any(one in render(report) for one in hidden)


@pytest.mark.parametrize("name", ["features", "captured", "invalid", "exclusivity_crowded"])
def test_states_without_a_film_have_no_strip_and_no_heading(name: str) -> None:
    page = render(STATES[name]())
    assert STRIP not in page
    assert WORDS not in page


def test_without_frames_there_is_no_strip_and_no_word_of_it() -> None:
    report = STATES["demonstrated"]()
    page = render(with_film(report, None))
    assert STRIP not in page
    assert WORDS not in page
    assert "film strip" not in page


def test_a_film_without_its_last_picture_is_not_shown() -> None:
    report = STATES["demonstrated"]()
    assert STRIP in render(report)
    for last in (None, STATES["all_hits"]().findings.exhibits[0].reconstruction):
        exhibits = [
            one.model_copy(update={"reconstruction": last}) if one.film else one
            for one in report.findings.exhibits
        ]
        assert STRIP not in render(changed(report, exhibits=tuple(exhibits)))


def test_a_report_is_rendered_again_from_its_file(tmp_path) -> None:
    report = STATES["demonstrated"]()
    path = tmp_path / "report.json"
    path.write_text(report.model_dump_json(), encoding="utf-8")
    assert render(load_report(path)) == render(report)


def test_shares_below_one_percent_are_not_none() -> None:
    report = STATES["demonstrated"]()
    film = median(report).film
    assert film is not None
    first, second, *_ = film.frames
    early = second.model_copy(update={"after": 3})
    part = strip(render(with_film(report, Film(iterations=1000, frames=(first, early)))))
    assert "&lt;1%" in part
    assert "after 3 of 1,000 iterations" in part


@pytest.mark.parametrize("damage", ["order", "late", "none", "shape", "row", "iterations"])
def test_a_film_that_makes_no_sense_is_refused(damage: str) -> None:
    held = json.loads(STATES["demonstrated"]().model_dump_json())
    film = next(one["film"] for one in held["findings"]["exhibits"] if one["film"])
    frames = film["frames"]
    if damage == "order":
        frames.reverse()
    elif damage == "late":
        frames[-1]["after"] = film["iterations"]
    elif damage == "none":
        frames.clear()
    elif damage == "shape":
        frames[0]["picture"]["shape"] = [1, 625, 1]
    elif damage == "row":
        for one in frames:
            one["picture"] = {"shape": [2], "features": [0.0, 1.0]}
    else:
        film["iterations"] = 0
    with pytest.raises(ValidationError, match="film"):
        AuditReport.model_validate(held)


def test_a_console_shows_no_picture() -> None:
    film = median(STATES["demonstrated"]()).film
    assert repr(film) == "Film(iterations=1200, frames=5)"
