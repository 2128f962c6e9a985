"""Every state of the page, as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from vestige.pages import render
from vestige.pages.audit import page as audit_page
from vestige.pages.audit.features import original
from vestige.pages.inversion import page as inversion_page
from vestige.pages.inversion.page import candidate_views, stamp_of
from vestige.pages.pictures import data_uri, sprite_uri
from vestige.reports.audit import AuditReport, Claim
from vestige.reports.inversion import Candidate, InversionReport
from vestige.reports.parts import Check, CheckOutcome, ColumnDescription, Failure, Picture
from vestige.studies.judge import report_on

from .audits import changed, exclusivity_of, image_report
from .states import STATES

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"
FORBIDDEN = (r"\bsafe\b", r"\bsecure\b", r"no risk", r"\bproves\b", r"\bup to\b")
VOID = {"meta", "img", "input", "br", "path", "rect", "line", "circle"}


class Reader(HTMLParser):
    """Collects elements, visible text, and whether tags are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


PAGES = [(name, redact) for name in STATES for redact in (False, True)]


@pytest.fixture(scope="module", params=PAGES, ids=lambda p: f"{p[0]}{'-redacted' * p[1]}")
def page(request: pytest.FixtureRequest) -> str:
    name, redact = request.param
    return render(STATES[name](), redact=redact)


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_well_formed_with_one_heading_and_landmarks(reader: Reader) -> None:
    assert reader.open == []
    assert len(reader.all("h1")) == len(reader.all("main")) == len(reader.all("header")) == 1
    assert len(reader.all("nav")) == len(reader.all("footer")) == 1
    assert reader.all("html") == [{"lang": "en"}]
    identifiers = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    for _, attributes in reader.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name) is None or attributes[name] in identifiers
    links = [a["href"] or "" for a in reader.all("a")]
    assert links[0] == "#verdict"
    assert all(link[1:] in identifiers for link in links)


def test_pictures_and_tables_are_named(reader: Reader) -> None:
    assert all(a.get("alt") for a in reader.all("img"))
    assert all(a.get("scope") in ("row", "col") for a in reader.all("th"))
    for tag, attributes in reader.elements:
        if attributes.get("role") in ("img", "region"):
            assert attributes.get("aria-label") or attributes.get("aria-labelledby"), tag
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")


def test_nothing_leaves_the_page(page: str, reader: Reader) -> None:
    policy = next(a["content"] or "" for a in reader.all("meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(['\"]?(?!#)", page)
    assert all((a["src"] or "").startswith("data:image/png;base64,") for a in reader.all("img"))
    assert not reader.all("link")
    for _, attributes in reader.elements:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)


def test_words_that_no_verdict_may_say(page: str, reader: Reader) -> None:
    for word in FORBIDDEN:
        assert not re.search(word, page, re.IGNORECASE), word
    assert not re.search("[\U0001f300-\U0001faff]", page)
    assert "None" not in reader.text.replace("None of 100", "")
    assert "nan" not in reader.text.split()


def test_size(page: str) -> None:
    assert len(page.encode()) < 1_000_000


@pytest.mark.parametrize("name", STATES)
def test_equal_reports_give_equal_pages(name: str) -> None:
    report = STATES[name]()
    again = type(report).model_validate_json(report.model_dump_json())
    assert render(report) == render(again)


def test_the_verdict_is_printed_as_it_is() -> None:
    for build in STATES.values():
        report = build()
        text = Reader(render(report)).text
        assert report.verdict.headline in text
        assert report.verdict.lede in text


def test_demonstrated() -> None:
    report = STATES["demonstrated"]()
    text = Reader(render(report)).text
    rate = report.judgement.rates_of(report.findings.attacks[0]).rate
    assert rate is not None
    assert "DEMONSTRATED" in text
    assert f"{100 * rate.value:.0f} of 100 secrets" in text
    assert f"{rate.hits} of {rate.trials}" in text
    assert "1 of 100 secrets" in text
    assert "✓ hit, rank 1 of 100 among its decoys" in text
    assert "Best trial place 1 of 200" in text
    assert "Median trial place 100 of 200" in text
    assert "2 March 2026" in text
    assert "No bound is known for this mechanism" in text
    assert "vestige report RUN" in text


def test_not_demonstrated_keeps_its_pictures() -> None:
    reader = Reader(render(STATES["not_demonstrated"]()))
    assert "This is not evidence of safety." in reader.text
    assert len(reader.all("img")) == 9 + 6
    assert "lie closer" not in reader.text


def test_invalid_shows_no_rate_and_no_picture() -> None:
    page = render(STATES["invalid"]())
    reader = Reader(page)
    assert not reader.all("img")
    assert not re.search(r'id="(evidence|bounds)"', page)
    assert "of 100 secrets" not in reader.text
    assert "Lower restarts from 32 to 8" in reader.text
    assert "Partial what finished before the check failed" in reader.text


def test_claims() -> None:
    refuted = Reader(render(STATES["claim_refuted"]())).text
    assert "CLAIM REFUTED" in refuted
    assert "10 of 100 secretsat most, says the data sheet" in refuted
    assert "Claimed: at most 10%." in refuted
    holds = Reader(render(STATES["claim_holds"]())).text
    assert "Claimed: at most 95%." in holds
    assert "says the data sheet" not in holds


def test_one_trial_has_no_rate() -> None:
    page = render(STATES["one_trial"]())
    text = Reader(page).text
    assert "No ROC: one trial is a picture, not a rate." in text
    assert "Best trial" not in text
    assert "rank 1 of 100" in text
    assert 'id="roc-in"' not in page
    assert "of 100 secrets" not in text


def test_few_trials_are_all_shown() -> None:
    text = Reader(render(STATES["few_trials"]())).text
    assert all(f"Trial {i} place" in text for i in range(1, 5))
    assert "4 of 4 (at least 39%)" in text


def test_many_trials_do_not_make_the_page_grow() -> None:
    few, many = (len(render(STATES[n]())) for n in ("demonstrated", "many_trials"))
    assert abs(few - many) < 10_000
    for path in re.findall(r' d="([^"]+)"', render(STATES["many_trials"]())):
        if not path.count("a4 4") and not path.count("a3.5 3.5"):
            assert len(re.findall("[MLHV]", path)) <= 400


def test_pages_say_where_decoys_come_from() -> None:
    """From the pool of the secrets, with their class, and never from the attacker's prior."""
    page = render(STATES["demonstrated"]())
    assert 'alt="Decoy: another face of the same class"' in page
    assert "of the prior" not in page
    assert "other records of the same class that no attacker holds" in Reader(page).text


def test_too_few_decoys_are_named() -> None:
    text = Reader(render(STATES["too_few_decoys"]())).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "No ROC: 40 decoys; FPR = 1% needs 99." in text


def test_no_secret_known() -> None:
    reader = Reader(render(STATES["captured"]()))
    assert "No secret was given, so no rate can be" in reader.text
    assert "confidence 0.93" not in reader.text, "an attack's own score is no confidence"
    assert "0.2% of the release left unexplained by all candidates together" in reader.text
    assert "CANDIDATES" in reader.text
    assert "not demonstrated" not in reader.text.lower()
    assert len(reader.all("img")) == 6
    for word in ("Decoys per trial", "False positive rate", "Trials"):
        assert word not in reader.text


@pytest.mark.parametrize(("left", "tone"), [(0.002, "decoy"), (0.4, "caution")])
def test_candidates_that_match_nothing_have_the_tone_of_a_warning(left: float, tone: str) -> None:
    report = STATES["captured"]()
    fits = tuple(f.model_copy(update={"residual": left}) for f in report.findings.fits)
    stamp = stamp_of(changed(report, fits=fits))
    assert (stamp.word, stamp.tone) == ("Candidates", tone)


def test_batches_are_one_row_below() -> None:
    reader = Reader(render(STATES["batches"]()))
    assert reader.text.count("rest of its batch") == 3
    assert len(reader.all("img")) == 9 + 6 + 6


PART = "How often can a batch be solved by the published condition?"


def test_the_condition_is_shown_exactly_when_it_was_measured() -> None:
    for name, build in STATES.items():
        report = build()
        for redact in (False, True):
            page = render(report, redact=redact)
            measured = getattr(report.findings, "exclusivity", None) is not None
            assert (PART in page) == measured, name
            assert ('href="#exclusivity"' in page) == measured, name
    measured = STATES["exclusivity"]().findings.exclusivity
    assert PART not in render(changed(STATES["invalid"](), exclusivity=measured)), (
        "no rate stands above a failed check"
    )


def test_the_condition_in_words_and_numbers() -> None:
    report = STATES["exclusivity"]()
    reader = Reader(render(report))
    text = reader.text
    assert "Batches of 16 that meet the condition: none (at most 1.9%)" in text
    assert "A batch that fails the condition is not protected." in text
    assert (
        "200 random batches of each size, the same for every network, drawn from 2,000 of the "
        "10,000 secrets. Bars are 95% limits, each for itself." in text
    )
    rate = report.judgement.rates_of(report.findings.attacks[0]).rate
    assert rate is not None
    assert rate.lower > 0.019
    assert "Inverting Gradients hit secrets more often than the condition holds" in text
    labels = [a["aria-label"] or "" for a in reader.all("svg") if a.get("role") == "img"]
    assert any("Batches of 16: none (at most 1.9%)." in label for label in labels)
    cells = text[text.index("The shares as a table") :]
    for words in ("784-200-10, step 0, audited", "784-1000-10, step 350", "90% (84–94%)"):
        assert words in cells
    assert "200 of 200 (at least 98%)" in cells
    assert cells.count("none (at most 1.9%)") == 1


def test_an_attack_below_the_condition_is_not_said_to_be_above() -> None:
    report = STATES["exclusivity"]()
    found = report.findings.exclusivity
    assert found is not None
    curve = found.curves[0]
    all_held = curve.rates[0].model_copy(update={"batch_size": 16})
    other = curve.model_copy(update={"rates": (*curve.rates[:-1], all_held)})
    update = {"exclusivity": found.model_copy(update={"curves": (other,)})}
    text = Reader(render(changed(report, **update))).text
    assert "Batches of 16 that meet the condition: 200 of 200 (at least 98%)" in text
    assert "more often than the condition holds" not in text
    assert "the same for every network" not in text


def test_without_the_audited_network_the_condition_has_no_headline_number() -> None:
    report = STATES["exclusivity"]()
    found = report.findings.exclusivity
    assert found is not None
    curves = tuple(
        c.model_copy(update={"audited": False, "reads_features": True}) for c in found.curves
    )
    update = {"exclusivity": found.model_copy(update={"curves": curves})}
    page = render(changed(report, **update))
    text = Reader(page).text
    assert "Batches that meet the condition, by their size" in text
    assert "784-200-10 on features, step 0" in text
    assert "their output is what is solved for" in text
    assert 'class="line line-0"' not in page, "that style is the audited network's"


def test_more_networks_than_lines_are_in_the_table() -> None:
    page = render(STATES["exclusivity_crowded"]())
    text = Reader(page).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "2 more networks in the table." in text
    assert all(f"3072-{width}-100, step" in text for width in range(100, 900, 100))


def hidden(report: AuditReport | InversionReport) -> list[str]:
    """Everything of a secret or a reconstruction that a page could hold."""
    found: list[str] = []
    for exhibit in getattr(report.findings, "exhibits", ()):
        pairs = [(exhibit.secret, exhibit.reconstruction), *exhibit.batch]
        for pair in pairs:
            for picture in pair:
                if picture is None:
                    continue
                if picture.pixels is None:
                    columns = report.findings.space.columns
                    values = zip(columns, picture.array())
                    found += [original(c, v) for c, v in values if not c.categories]
                else:
                    found += [data_uri(picture), picture.pixels]
        if exhibit.batch and report.findings.space.kind == "image":
            found += [sprite_uri([p[i] for p in exhibit.batch]) for i in (0, 1)]
        for frame in exhibit.film.frames if exhibit.film else ():
            found += [data_uri(frame.picture), frame.picture.pixels or ""]
    for candidate in getattr(report.findings, "candidates", ()):
        for picture in (candidate.picture, candidate.agreement):
            found += [data_uri(picture)] if picture else []
    return [text.removeprefix("data:image/png;base64,") for text in found]


@pytest.mark.parametrize("name", ["demonstrated", "batches", "captured", "features", "few_trials"])
def test_redaction_withholds_secrets_and_reconstructions(name: str) -> None:
    report = STATES[name]()
    secrets = hidden(report)
    open_page, page = render(report), render(report, redact=True)
    assert any(s in open_page for s in secrets)
    assert "redacted" in Reader(page).text
    assert "withheld" in page
    if report.findings.space.kind == "image":
        assert not any(s in page for s in secrets)
    else:
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
        shown = {original(c, v) for e in report.findings.exhibits if e.decoy
                 for c, v in zip(report.findings.space.columns, e.decoy.array())}  # fmt: skip
        assert not [s for s in secrets if s in cells and s not in shown]
        assert "recovered" not in page.replace("Recovered: within", "")
    assert "label 7" not in page


def test_redacted_pages_show_no_record_at_all() -> None:
    """Decoys come from the same pool as the secrets, so they are withheld too."""
    assert not Reader(render(STATES["demonstrated"](), redact=True)).all("img")


def test_redacted_pages_do_not_repeat_what_an_attack_said() -> None:
    failure = Failure(attack="A", trial=3, message="ValueError: row 4711.", remedy="Mend it.")
    report = report_on(changed(STATES["invalid"](), failure=failure).findings)
    assert "4711" in render(report)
    assert "4711" not in render(report, redact=True)


def test_a_redacted_report_stays_redacted() -> None:
    report = changed(STATES["demonstrated"](), redacted=True)
    assert render(report) == render(report, redact=True)


def test_settings_are_said_once() -> None:
    settings = {"Trials, seed": "200, 7", "distance": "RMSE", "Network": "small"}
    report = changed(STATES["demonstrated"](), settings=settings)
    page = render(report)
    rows = re.findall(r'<th scope="row">([^<]+)</th><td>', page[page.index('id="set-h"') :])
    assert rows[:3] == ["Trials, seed", "Distance", "Network"]
    assert not {"Trials", "Seed", "distance"} & set(rows)
    assert {"Release", "Confidence", "Render again"} <= set(rows)


def test_names_are_escaped() -> None:
    base = image_report(trials=12)
    attacks = tuple(
        a.model_copy(update={"name": f"{i}{HOSTILE}", "summary": HOSTILE, "cites": HOSTILE,
                             "settings": {HOSTILE: HOSTILE}})
        for i, a in enumerate(base.findings.attacks)
    )  # fmt: skip
    threat = base.findings.threat
    threat = threat.model_copy(update=dict.fromkeys(type(threat).model_fields, HOSTILE))
    exhibits = tuple(
        e.model_copy(update={"attack": attacks[0].name, "label": HOSTILE})
        for e in base.findings.exhibits
    )
    texts = dict.fromkeys(("headline", "lede", "remedy"), HOSTILE)
    rates = zip(attacks, base.judgement.rates.values(), strict=True)
    report = changed(
        base,
        title=HOSTILE,
        release=HOSTILE,
        distance=HOSTILE,
        attacks=attacks,
        rates={attack.name: one for attack, one in rates},
        exhibits=exhibits,
        threat=threat,
        limits=(HOSTILE,),
        settings={HOSTILE: HOSTILE},
        environment={HOSTILE: HOSTILE},
        claim=Claim(rate=0.5, source=HOSTILE),
        checks=(Check(outcome=CheckOutcome.REMARK, sentence=HOSTILE, remedy=HOSTILE),),
        verdict=base.verdict.model_copy(update=texts | {"attack": attacks[0].name}),
        times=base.findings.times.model_copy(update={"finished": HOSTILE}),
        space=base.findings.space.model_copy(update={"noun": HOSTILE}),
        exclusivity=exclusivity_of({HOSTILE: (3,), f"2{HOSTILE}": (1,)}, (1,)),
    )
    check_escaped(report)
    columns = tuple(
        ColumnDescription(name=HOSTILE, center=0, scale=1, categories=(HOSTILE,)) for _ in range(3)
    )
    row = Picture.of(np.zeros(3))
    space = report.findings.space.model_copy(
        update={"kind": "table", "columns": columns, "shape": (3,)}
    )
    table = tuple(
        e.model_copy(update={"secret": row, "reconstruction": row, "decoy": row}) for e in exhibits
    )
    check_escaped(changed(report, space=space, exhibits=table))
    candidate = Candidate(
        attack=HOSTILE, label=HOSTILE, confidence=None, objective=None, picture=row
    )
    inverted = STATES["captured"]()
    common = set(type(inverted.findings).model_fields) & set(type(report.findings).model_fields)
    same = {name: getattr(report.findings, name) for name in common - {"attacks"}}
    check_escaped(
        changed(
            inverted,
            **{**same, "space": space, "candidates": (candidate,)},
            attacks=attacks,
            verdict=report.verdict,
            checks=report.judgement.checks,
        )
    )


def check_escaped(report: AuditReport | InversionReport) -> None:
    page = render(report)
    assert "<img src=x" not in page
    assert page.count("<script") == page.count("</script>")
    reader = Reader(page)
    assert reader.open == []
    assert all((a["src"] or "").startswith("data:") for a in reader.all("img"))


def test_optional_parts_are_dropped_before_the_page_grows_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = STATES["batches"]()
    # The film strip goes first, then differences from the last trial on, then batches; each time
    # the page just misses the limit.
    drawn = [(3, 21), (3, 15), (2, 15), (1, 15), (0, 15), (0, 9)]
    page = render(report)
    for differences, images in drawn:
        reader = Reader(page)
        labels = [a["aria-label"] or "" for a in reader.all("svg") if "aria-label" in a]
        shown = [label for label in labels if label.startswith("Difference")]
        assert (len(shown), len(reader.all("img"))) == (differences, images)
        kept = [number for number in (1, 2, 3) if f'id="t{number}-' in page and shown]
        assert kept[:differences] == [1, 2, 3][:differences]
        assert ("film strip is left out to keep the page small" in page) == (images < 21)
        assert ("some trials are left out to keep the page small" in page) == (differences < 3)
        monkeypatch.setattr(audit_page, "HARD_LIMIT", len(page.encode()) - 1)
        page = render(report)
    captured = STATES["captured"]()
    monkeypatch.setattr(inversion_page, "HARD_LIMIT", len(render(captured).encode()) - 1)
    assert len(Reader(render(captured)).all("img")) == 3


def test_a_lost_trial_is_a_box_that_says_so() -> None:
    report = STATES["few_trials"]()
    lost = report.findings.exhibits[-1].model_copy(
        update={"reconstruction": None, "distance": None, "nearest_decoy": None}
    )
    exhibits, hits = (*report.findings.exhibits[:-1], lost), report.judgement.hits
    page = render(changed(report, exhibits=exhibits, hits=(*hits[:-1], False)))
    assert 'aria-label="Reconstruction: nothing"' in page
    assert "Distance –, nearest decoy –" in page


def test_runs_that_draw_the_same_have_words_in_place_of_a_white_map():
    report = STATES["captured"]()
    shown = report.findings.candidates[0]
    white = Picture.of(np.ones(shown.picture.array().shape))
    for agreement, alike in ((white, True), (Picture.of(np.full(white.array().shape, 0.5)), False)):
        candidate = shown.model_copy(update={"agreement": agreement})
        found = report.findings.model_copy(update={"candidates": (candidate,)})
        (view,) = candidate_views(found, agreement=True)
        assert ("all runs drew the same" in view.facts) is alike
        assert ("Agreement" in [one.role for one in view.frames]) is not alike
