"""Audits of texts: the same flow, with distances, decoys, guesses and refusals of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rendered_words import visible_words
from text_worlds import SPACE, model, text_audit, texts, victim
from vestige import Audit, Prior, Records, TextSpace, attacks, datasets, networks, run
from vestige.attacks import EmbeddingReading, Guess, SpanInversion, TextSearch
from vestige.defenses import GradientNoise
from vestige.distances import TokenDistance, TokenSetDistance, distance_label, mean_squared_error
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Reconstruction, reads_texts
from vestige.networks import TokenModel, own_loss
from vestige.pages.audit.page import render_audit
from vestige.reports.files import load_report
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.streams import stream
from vestige.studies.audit.evidence import draw_decoys, gather, length_band
from vestige.studies.inversion.plan import invert
from vestige.studies.inversion.rehearsals import _guess_error
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, Normalization, SharedGradient


@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_an_audit_of_texts_runs_from_recommendation_to_report(task, tmp_path):
    audit = text_audit(None, victim=victim(task), trials=6)
    assert [type(one) for one in audit.chosen_attacks] == [
        SpanInversion,
        EmbeddingReading,
        TextSearch,
    ]
    report = run(audit, seed=0, directory=tmp_path / "run")
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    found = report.findings
    assert found.space.kind == "text"
    assert found.distance == "share of differing tokens"
    for outcome in found.attacks[0].outcomes:
        assert outcome.exact_match
        assert outcome.token_accuracy == outcome.rouge_l == 1.0
        assert outcome.label_accuracy == (1.0 if task == "classification" else None)
        assert outcome.mse is outcome.psnr is outcome.decoy_mean_error is outcome.details is None
    assert load_report(tmp_path / "run").findings == found


def test_texts_survive_a_model_in_bfloat16():
    """Token 300 is none of bfloat16's numbers: it would be read as another one."""
    space = TextSpace(6, 400, ("a", "b"))
    wide = networks.transformer(space, "language modelling", width=32, heads=2).bfloat16()
    held = SharedGradient(wide, mode="eval", loss=own_loss)
    records = Records(torch.full((1, 6), 301.0), torch.tensor([0]), space)
    assert held.simulator.batch(records)[0].eq(301).all()
    release = held.release(records, generator=stream(0))
    rows = release.tensors["model.tokens.weight"].abs().sum(1)
    assert torch.nonzero(rows).flatten().tolist() == [301]


REFUSED = [
    attack
    for name in attacks.__all__
    if hasattr(attack := getattr(attacks, name), "prepare")
    and name not in ("BestOfRestarts", "RehearsedConfidence")
    and not reads_texts(attack)  # pyright: ignore
]


@pytest.mark.parametrize("cls", REFUSED)
def test_other_attacks_are_refused_in_one_sentence(cls):
    with pytest.raises(BadInput, match=r"does not read texts|cannot read"):
        text_audit([cls()])


def test_text_attacks_refuse_other_records():
    from worlds import small_audit

    for attack in (SpanInversion(), EmbeddingReading(), TextSearch()):
        with pytest.raises(BadInput, match="reads texts, and these records are none"):
            small_audit([attack])


def test_models_and_texts_that_do_not_fit_are_one_sentence():
    def audited(network, task="language modelling", **settings):
        made = TokenModel(network, task) if task else network
        return run(text_audit([Guess()], victim=SharedGradient(made, mode="eval", **settings)))

    class Lookup(torch.nn.Module):
        def __init__(self, rows, places, classifies=False):
            super().__init__()
            self.tokens, self.places = torch.nn.Embedding(rows, 4), torch.nn.Embedding(places, 4)
            self.last, self.classifies = torch.nn.Linear(4, rows), classifies

        def forward(self, x):
            found = self.last(self.tokens(x) + self.places(torch.arange(x.shape[1])))
            return found.mean(1) if self.classifies else found

    with torch.random.fork_rng():
        own = {"loss": own_loss}
        with pytest.raises(BadInput, match="largest embedding of the model has 20 rows"):
            audited(Lookup(20, 7), **own)
        with pytest.raises(BadInput, match="length= of from_texts, --length"):
            audited(Lookup(40, 5), **own)
        with pytest.raises(BadInput, match="language modelling head"):
            audited(Lookup(40, 7, classifies=True), **own)
        with pytest.raises(BadInput, match=r"wrap it in vestige\.networks\.TokenModel"):
            audited(Lookup(40, 7, classifies=True), None)
        with pytest.raises(BadInput, match="give the victim loss=own_loss"):
            audited(Lookup(40, 7))


def test_empty_texts_are_remarked_on(caplog):
    datasets.from_texts(["one text", "", "another"])
    assert "1 of 3 texts have no token, the first at place 1" in caplog.text


def test_updates_of_several_steps_name_an_attack_that_reads_texts():
    several = LocalTraining(steps=3, learning_rate=0.1)
    held = FederatedUpdate(model(), several, loss=own_loss, mode="eval")
    report = run(text_audit([TextSearch()], victim=held, trials=1), seed=0)
    assert "try EmbeddingReading" in report.findings.failure.message


def test_normalisation_of_tokens_is_refused():
    with pytest.raises(BadInput, match="not normalised"):
        text_audit([SpanInversion()], victim=victim(normalization=Normalization((0.5,), (0.5,))))


class Dropped(torch.nn.Module):
    """Drops values in a layer, or by a function as attention does."""

    def __init__(self, functional):
        super().__init__()
        self.inner = model("classification").model
        self.attention_dropout = 0.5 if functional else 0.0
        self.layer = torch.nn.Dropout(0.0 if functional else 0.5)

    def forward(self, tokens):
        found = self.layer(self.inner(tokens))
        return torch.nn.functional.dropout(found, self.attention_dropout, self.training)


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize(("mode", "said"), [("train", True), ("eval", False)])
def test_preflight_says_that_dropout_is_not_replayed(mode, said, functional):
    held = SharedGradient(TokenModel(Dropped(functional)), mode=mode)
    checks = text_audit([Guess()], victim=held).preflight(0)
    remarks = [c for c in checks if c.outcome is CheckOutcome.REMARK and "dropout" in c.sentence]
    assert any("inside attention" in one.sentence for one in remarks) is said


rows = st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4)


def naive_distance(left, right):
    def cut(text):
        while text and text[-1] == 0:
            text = text[:-1]
        return text

    left, right = cut(left), cut(right)
    longer = max(len(left), len(right))
    pairs = [left[i : i + 1] == right[i : i + 1] for i in range(longer)]
    return (longer - sum(pairs)) / longer if longer else 0.0


@given(rows, rows)
def test_token_distance_is_the_naive_one(left, right):
    found = TokenDistance()(torch.tensor(left).float(), torch.tensor(right).float())
    naive = [[naive_distance(one, other) for other in right] for one in left]
    assert torch.allclose(found, torch.tensor(naive).double())


@given(rows, rows)
def test_token_sets_are_compared_without_order(left, right):
    found = TokenSetDistance()(torch.tensor(left).float(), torch.tensor(right).float())
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            first, second = set(one) - {0}, set(other) - {0}
            union = first | second
            expected = len(first ^ second) / len(union) if union else 0.0
            assert float(found[i, j]) == pytest.approx(expected)


def test_the_default_distance_of_texts_knows_their_padding():
    space = replace(SPACE, padding=3)
    held = replace(victim(), model=model(space=space))
    audit = text_audit(
        [Guess()], victim=held, secrets=texts(60, 1, space), prior=Prior(texts(60, 2, space))
    )
    assert audit.distance == (TokenDistance(3), TokenSetDistance(3))
    assert distance_label(audit.distances[0]) == "share of differing tokens"
    assert text_audit([Guess()], distance=TokenSetDistance()).distance == TokenSetDistance()
    squared = text_audit([Guess()], distance=(mean_squared_error,))
    assert squared.distance == (TokenDistance(),)


@pytest.mark.parametrize("trials", [1, 8])
def test_tokens_without_their_order_are_judged_and_shown_without_it(trials):
    """A bag of the right tokens is the worst by places; the verdict is that of the tokens."""

    class Bag(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.last = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.tokens(x).mean(1))

    space = TextSpace(8, 40, ("a", "b"))

    def falling(seed):
        """Texts whose tokens fall: tokens that a reading returns as they are numbered rise."""
        rows = [torch.randperm(39, generator=stream(seed, str(n)))[:8] + 1 for n in range(60)]
        x = torch.stack(rows).sort(1, descending=True).values.float()
        return Records(x, torch.arange(60) % 2, space)

    settings = {"secrets": falling(1), "prior": Prior(falling(2)), "trials": trials}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        held = SharedGradient(TokenModel(Bag()), mode="eval")
    report = run(text_audit([EmbeddingReading()], victim=held, **settings), seed=0)
    found, attack = report.findings, report.findings.attacks[0]
    assert attack.without_order
    held = [one.further[0] for one in attack.outcomes]
    assert all(one.rank == 1 for one in held)
    assert all(one.rank > 1 for one in attack.outcomes)
    assert {one.distance for one in found.exhibits} <= {one.distance for one in held}
    assert all(report.judgement.hits)
    words = visible_words(render_audit(report))
    assert "The attack reads tokens without their order" in words
    assert "in the secret, without order" in words
    if trials == 1:
        assert "(rank 1 of" in report.verdict.lede
    else:
        assert report.verdict.kind is VerdictKind.DEMONSTRATED
        assert report.judgement.distance == "share of tokens not in common"


def test_token_sets_of_no_candidates_and_of_empty_texts():
    texts_held = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    assert TokenSetDistance()(torch.empty(0, 3), texts_held).shape == (0, 2)
    found = TokenSetDistance()(texts_held, texts_held)
    assert found.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_decoys_have_the_label_and_a_length_of_the_band():
    notes = datasets.load("notes")
    lengths = [len(notes.space.tokens(row)) for row in notes.x]
    decoys = draw_decoys(notes, 7, 99, generator=stream(0))
    assert len(set(decoys.tolist())) == 99
    assert 7 not in decoys.tolist()
    assert set(notes.y[decoys].tolist()) == {int(notes.y[7])}
    apart = [abs(lengths[one] - lengths[7]) for one in decoys.tolist()]
    assert max(apart) <= 2


@pytest.mark.parametrize("least", [1, 5, 100, 399])
def test_bands_are_a_partition_that_does_not_depend_on_the_audited_text(least):
    """Every text of a band has the same band: a text and its decoys are exchangeable."""
    notes = datasets.load("notes")[torch.arange(0, 1200, 2)]
    bands = {}
    for audited in range(0, len(notes), 7):
        held = torch.nonzero(length_band(notes, audited, least)).flatten().tolist()
        assert audited in held
        count = int((notes.y == notes.y[audited]).sum())
        assert len(held) >= min(least, count)
        for other in held:
            assert bands.setdefault(other, held) == held


def test_the_average_text_has_the_most_common_tokens():
    prior = Prior(texts(31, 5))
    for label in (0, 1, None):
        held = prior.records.x if label is None else prior.records.x[prior.records.y == label]
        mean = prior.mean(label)
        for place in range(SPACE.length):
            counts = Counter(held[:, place].tolist())
            assert counts[float(mean[place])] == max(counts.values())


def test_measures_of_a_text_that_came_back_in_part():
    notes = datasets.load("notes")
    secret, drawn = notes[:2], notes.x[:1].clone()
    drawn[0, 0] = drawn[0, 1]
    found = gather(Reconstruction(drawn), secret, 0, notes[30:60], TokenDistance())
    length = len(notes.space.tokens(notes.x[0]))
    assert found.token_accuracy == pytest.approx(1 - 1 / length)
    assert found.rouge_l == pytest.approx(1 - 1 / length)
    assert found.exact_match is False
    assert found.details[0] == found.details[1] > 0
    missing = gather(Reconstruction(drawn[:0]), secret, 0, notes[30:60], TokenDistance())
    assert (missing.exact_match, missing.token_accuracy, missing.rouge_l) == (False, 0.0, 0.0)
    assert missing.details == (0, found.details[1])
    broken = torch.full_like(drawn, float("nan"))
    assert gather(Reconstruction(broken), secret, 0, notes[30:60]).exact_match is False


def observed(held, batch, told=True):
    release = held.release(batch, generator=stream(0))
    public = HonestServer().public(held, Prior(texts(60, 9)))
    return public, Observation(release, Hints(len(batch) if told else None))


@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_embedding_reading_names_the_tokens_that_were_read(kind):
    """All tokens of a text but the last, which a language model only predicts."""
    held = victim()
    if kind == "update":
        local = LocalTraining(steps=3, learning_rate=0.1)
        held = FederatedUpdate(model(), local, loss=own_loss, mode="eval")
    batch = texts(1, 4)
    public, observation = observed(held, batch)
    reconstruct = EmbeddingReading().prepare(public, generator=stream(1))
    found = reconstruct(observation, stream(2))
    tokens = SPACE.tokens(batch.x[0])
    assert set(SPACE.tokens(found.candidates[0])) == set(tokens[:-1])
    assert "not their order" in found.remark
    norms = observation.release.tensors["model.tokens.weight"].norm(dim=1)
    ordered = [float(norms[token]) for token in SPACE.tokens(found.candidates[0])]
    assert ordered == sorted(ordered, reverse=True)


def test_embedding_reading_says_that_noise_names_every_token():
    public, observation = observed(victim(), texts(1, 4))
    noisy = {n: t + 1e-9 for n, t in observation.release.tensors.items()}
    release = replace(observation.release, tensors=noisy)
    reconstruct = EmbeddingReading().prepare(public, generator=stream(1))
    found = reconstruct(replace(observation, release=release), stream(2))
    assert "noise" in found.remark
    assert len(found.candidates) == 1


def test_embedding_reading_refuses_embeddings_that_tell_nothing():
    tied, frozen = model(), model()
    tied.model.output.weight = tied.model.tokens.weight
    frozen.model.tokens.requires_grad_(False)
    for network, said in ((tied, "tied"), (frozen, "is trained")):
        held = SharedGradient(network, mode="eval", loss=own_loss)
        public = HonestServer().public(held, Prior(texts(60, 9)))
        with pytest.raises(BadInput, match=said):
            EmbeddingReading().prepare(public, generator=stream(0))


def test_an_update_of_one_step_gives_its_texts_away():
    held = FederatedUpdate(model(), LocalTraining(1, learning_rate=0.5), loss=own_loss, mode="eval")
    report = run(text_audit([SpanInversion()], victim=held, batch_size=2, trials=4), seed=0)
    assert all(outcome.exact_match for outcome in report.findings.attacks[0].outcomes)


@pytest.mark.parametrize("noise", [1e-4, 1e-3, 1e-1])
def test_noise_ends_in_a_verdict_and_no_exception(noise):
    report = run(text_audit(None, victim=GradientNoise(noise)(victim()), trials=2), seed=0)
    assert report.verdict.kind is not VerdictKind.INVALID


def test_a_captured_gradient_of_texts_is_inverted():
    batch = texts(2, 4)
    public, observation = observed(victim(), batch)
    report = invert(observation, public, samples=1)
    assert report.findings.space.kind == "text"
    first = [one for one in report.findings.candidates if one.attack == "Span inversion"]
    drawn = sorted("".join(one.picture.words) for one in first)
    assert drawn == sorted(" ".join(map(str, SPACE.tokens(row))) for row in batch.x)


@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_rehearsals_of_texts_count_wrong_tokens(task):
    """What came back of simulated releases is measured by tokens, as a naive count has it."""
    batch = texts(1, 4)
    public, observation = observed(victim(task), batch)
    report = invert(observation, public, [SpanInversion()], samples=1, rehearsals=3)
    rehearsed = report.findings.rehearsals
    assert len(rehearsed) == 3
    for one in rehearsed:
        assert one.error == 0.0  # span inversion reads them all
        assert 0.5 < one.guess_error <= 1.0
    assert "3 of these came back" in report.verdict.lede
    assert "wrong tokens" in report.verdict.lede
    prior = public.prior
    means = [prior.mean(int(label)).int().tolist() for label in batch.y]
    pairs = zip(means, batch.x.int().tolist())
    naive = sum(naive_distance(one, other) for one, other in pairs) / len(batch)
    assert _guess_error(prior, batch) == pytest.approx(naive)


def test_a_reconstruction_of_other_texts_hides_the_secrets_in_a_repr():
    report = run(text_audit([SpanInversion()], trials=2), seed=0)
    shown = repr(report.findings.exhibits)
    assert "words" not in shown


def test_decoys_too_few_are_still_refused():
    with pytest.raises(BadInput, match="decoys"):
        Audit(victim(), texts(20, 1), Prior(texts(20, 2)), attacks=[Guess()])
