"""Every state of the page, as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import vestige.report as report
from vestige.record import (
    Candidate,
    Check,
    CheckOutcome,
    Claim,
    ColumnRecord,
    Failure,
    Picture,
    Record,
)
from vestige.report import render
from vestige.report.features import original
from vestige.report.pictures import data_uri, sprite_uri
from vestige.verdicts import judge

from .records import exclusivity_of, image_record
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
def test_equal_records_give_equal_pages(name: str) -> None:
    record = STATES[name]()
    again = Record.model_validate_json(record.model_dump_json())
    assert render(record) == render(again)


def test_the_verdict_is_printed_as_it_is() -> None:
    for build in STATES.values():
        record = build()
        text = Reader(render(record)).text
        assert record.verdict.headline in text
        assert record.verdict.lede in text


def test_demonstrated() -> None:
    record = STATES["demonstrated"]()
    text = Reader(render(record)).text
    rate = record.attacks[0].rate
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
    assert len(reader.all("img")) == 9
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


def test_too_few_decoys_are_named() -> None:
    text = Reader(render(STATES["too_few_decoys"]())).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "No ROC: 40 decoys; FPR = 1% needs 99." in text


def test_no_secret_known() -> None:
    reader = Reader(render(STATES["captured"]()))
    assert "No secret was given, so no rate can be." in reader.text
    assert "confidence 0.93" in reader.text
    assert len(reader.all("img")) == 6


def test_batches_are_one_row_below() -> None:
    reader = Reader(render(STATES["batches"]()))
    assert reader.text.count("rest of its batch") == 3
    assert len(reader.all("img")) == 9 + 6


PART = "How often can a batch be solved by the published condition?"


def test_the_condition_is_shown_exactly_when_it_was_measured() -> None:
    for name, build in STATES.items():
        record = build()
        for redact in (False, True):
            page = render(record, redact=redact)
            assert (PART in page) == (record.exclusivity is not None), name
            assert ('href="#exclusivity"' in page) == (record.exclusivity is not None), name
    measured = STATES["exclusivity"]().exclusivity
    assert PART not in render(STATES["invalid"]().model_copy(update={"exclusivity": measured})), (
        "no rate stands above a failed check"
    )


def test_the_condition_in_words_and_numbers() -> None:
    record = STATES["exclusivity"]()
    reader = Reader(render(record))
    text = reader.text
    assert "Batches of 16 that meet the condition: none (at most 1.9%)" in text
    assert "A batch that fails the condition is not protected." in text
    assert (
        "200 random batches of each size, the same for every network, drawn from 2,000 of the "
        "10,000 secrets. Bars are 95% limits, each for itself." in text
    )
    rate = record.attacks[0].rate
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
    record = STATES["exclusivity"]()
    found = record.exclusivity
    assert found is not None
    curve = found.curves[0]
    all_held = curve.rates[0].model_copy(update={"batch_size": 16})
    changed = curve.model_copy(update={"rates": (*curve.rates[:-1], all_held)})
    update = {"exclusivity": found.model_copy(update={"curves": (changed,)})}
    text = Reader(render(record.model_copy(update=update))).text
    assert "Batches of 16 that meet the condition: 200 of 200 (at least 98%)" in text
    assert "more often than the condition holds" not in text
    assert "the same for every network" not in text


def test_without_the_audited_network_the_condition_has_no_headline_number() -> None:
    record = STATES["exclusivity"]()
    found = record.exclusivity
    assert found is not None
    curves = tuple(
        c.model_copy(update={"audited": False, "reads_features": True}) for c in found.curves
    )
    update = {"exclusivity": found.model_copy(update={"curves": curves})}
    page = render(record.model_copy(update=update))
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


def hidden(record: Record) -> list[str]:
    """Everything of a secret or a reconstruction that a page could hold."""
    found: list[str] = []
    for exhibit in record.exhibits:
        pairs = [(exhibit.secret, exhibit.reconstruction), *exhibit.batch]
        for pair in pairs:
            for picture in pair:
                if picture is None:
                    continue
                if picture.pixels is None:
                    columns = record.space.columns
                    values = zip(columns, picture.array())
                    found += [original(c, v) for c, v in values if not c.categories]
                else:
                    found += [data_uri(picture), picture.pixels]
        if exhibit.batch and record.space.kind == "image":
            found += [sprite_uri([p[i] for p in exhibit.batch]) for i in (0, 1)]
    for candidate in record.candidates:
        for picture in (candidate.picture, candidate.agreement):
            found += [data_uri(picture)] if picture else []
    return [text.removeprefix("data:image/png;base64,") for text in found]


@pytest.mark.parametrize("name", ["demonstrated", "batches", "captured", "features", "few_trials"])
def test_redaction_withholds_secrets_and_reconstructions(name: str) -> None:
    record = STATES[name]()
    secrets = hidden(record)
    open_page, page = render(record), render(record, redact=True)
    assert any(s in open_page for s in secrets)
    assert "redacted" in Reader(page).text
    assert "withheld" in page
    if record.space.kind == "image":
        assert not any(s in page for s in secrets)
    else:
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
        shown = {original(c, v) for e in record.exhibits if e.decoy
                 for c, v in zip(record.space.columns, e.decoy.array())}  # fmt: skip
        assert not [s for s in secrets if s in cells and s not in shown]
        assert "recovered" not in page.replace("Recovered: within", "")
    assert "label 7" not in page


def test_redacted_pages_show_no_record_at_all() -> None:
    """Decoys come from the same pool as the secrets, so they are withheld too."""
    assert not Reader(render(STATES["demonstrated"](), redact=True)).all("img")


def test_redacted_pages_do_not_repeat_what_an_attack_said() -> None:
    failure = Failure(attack="A", trial=3, message="ValueError: row 4711.", remedy="Mend it.")
    record = STATES["invalid"]().model_copy(update={"failure": failure})
    record = judge(record)
    assert "4711" in render(record)
    assert "4711" not in render(record, redact=True)


def test_a_redacted_record_stays_redacted() -> None:
    record = STATES["demonstrated"]().model_copy(update={"redacted": True})
    assert render(record) == render(record, redact=True)


def test_settings_are_said_once() -> None:
    settings = {"Trials, seed": "200, 7", "distance": "RMSE", "Network": "small"}
    record = STATES["demonstrated"]().model_copy(update={"settings": settings})
    page = render(record)
    rows = re.findall(r'<th scope="row">([^<]+)</th><td>', page[page.index('id="set-h"') :])
    assert rows[:3] == ["Trials, seed", "Distance", "Network"]
    assert not {"Trials", "Seed", "distance"} & set(rows)
    assert {"Release", "Confidence", "Render again"} <= set(rows)


def test_names_are_escaped() -> None:
    base = image_record(trials=12)
    attacks = tuple(
        a.model_copy(update={"name": f"{i}{HOSTILE}", "summary": HOSTILE, "cites": HOSTILE,
                             "settings": {HOSTILE: HOSTILE}})
        for i, a in enumerate(base.attacks)
    )  # fmt: skip
    threat = base.threat.model_copy(update=dict.fromkeys(type(base.threat).model_fields, HOSTILE))
    exhibits = tuple(
        e.model_copy(update={"attack": attacks[0].name, "label": HOSTILE}) for e in base.exhibits
    )
    texts = dict.fromkeys(("headline", "lede", "remedy"), HOSTILE)
    record = base.model_copy(
        update={
            "title": HOSTILE,
            "release": HOSTILE,
            "distance": HOSTILE,
            "attacks": attacks,
            "exhibits": exhibits,
            "threat": threat,
            "limits": (HOSTILE,),
            "settings": {HOSTILE: HOSTILE},
            "environment": {HOSTILE: HOSTILE},
            "claim": Claim(rate=0.5, source=HOSTILE),
            "checks": (Check(outcome=CheckOutcome.REMARK, sentence=HOSTILE, remedy=HOSTILE),),
            "verdict": base.verdict.model_copy(update=texts | {"attack": attacks[0].name}),
            "times": base.times.model_copy(update={"finished": HOSTILE}),
            "space": base.space.model_copy(update={"noun": HOSTILE}),
            "exclusivity": exclusivity_of({HOSTILE: (3,), f"2{HOSTILE}": (1,)}, (1,)),
        }
    )
    check_escaped(record)
    columns = tuple(
        ColumnRecord(name=HOSTILE, center=0, scale=1, categories=(HOSTILE,)) for _ in range(3)
    )
    row = Picture.of(np.zeros(3))
    space = record.space.model_copy(update={"kind": "table", "columns": columns, "shape": (3,)})
    table = tuple(
        e.model_copy(update={"secret": row, "reconstruction": row, "decoy": row}) for e in exhibits
    )
    check_escaped(record.model_copy(update={"space": space, "exhibits": table}))
    candidate = Candidate(
        attack=HOSTILE, label=HOSTILE, confidence=None, objective=None, picture=row
    )
    update = {"space": space, "candidates": (candidate,), "exhibits": ()}
    check_escaped(record.model_copy(update=update))


def check_escaped(record: Record) -> None:
    page = render(record)
    assert "<img src=x" not in page
    assert page.count("<script") == page.count("</script>")
    reader = Reader(page)
    assert reader.open == []
    assert all((a["src"] or "").startswith("data:") for a in reader.all("img"))


def test_optional_parts_are_dropped_before_the_page_grows_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = STATES["batches"]()
    monkeypatch.setattr(report, "HARD_LIMIT", len(render(record).encode()) - 1)
    smaller = Reader(render(record))
    assert len(smaller.all("img")) == 9
    captured = STATES["captured"]()
    monkeypatch.setattr(report, "HARD_LIMIT", len(render(captured).encode()) - 1)
    assert len(Reader(render(captured)).all("img")) == 3


def test_a_lost_trial_is_a_box_that_says_so() -> None:
    record = STATES["few_trials"]()
    lost = record.exhibits[-1].model_copy(
        update={"reconstruction": None, "distance": None, "nearest_decoy": None, "hit": False}
    )
    page = render(record.model_copy(update={"exhibits": (*record.exhibits[:-1], lost)}))
    assert 'aria-label="Reconstruction: nothing"' in page
    assert "Distance –, nearest decoy –" in page
