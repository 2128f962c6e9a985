"""The film of a trial: what is kept of an attack's frames, and that nothing else depends on it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from vestige import Audit, run
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.content import document_bytes
from vestige.datasets import load
from vestige.engines import LocalProcesses
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Reconstruction
from vestige.networks import mlp
from vestige.pages import render
from vestige.progress import Frame, recording, show_frame
from vestige.records import Records
from vestige.reports.files import load_report
from vestige.reports.parts import Times
from vestige.studies.audit import trials
from vestige.studies.audit.film import film_of, film_tensors
from vestige.studies.audit.trial_files import trial_bytes
from vestige.studies.study import Header
from vestige.studies.unit_files import read_unit, unit_in
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import SPACE, LabelOnly, draws, small_audit

SEARCH = InvertingGradients(iterations=20)
STRIP = 'class="reel"'


def audit_of(*attacks, **changes) -> Audit:
    return small_audit(list(attacks), threat=HonestServer(labels=True), **changes)


def trial(audit: Audit, number: int = 0, seed: int = 4):
    return trials.run_trial(audit, audit.prepare(seed).reconstructors, number, seed=seed)


def without_times(report) -> bytes:
    findings = report.findings.model_copy(update={"times": type(report.findings.times)()})
    return document_bytes(report.model_copy(update={"findings": findings}))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_trials_are_the_same_with_and_without_films(monkeypatch, batch_size):
    audit = audit_of(SEARCH, DeepLeakage(iterations=20), LabelOnly(), batch_size=batch_size)
    with_films = trial(audit)
    monkeypatch.setattr(trials, "recorded", lambda space: nullcontext())
    plain = trial(audit)
    more = set(with_films.tensors) - set(plain.tensors)
    attacks = ("Inverting Gradients", "Deep Leakage")
    assert more == {f"{kind}/{name}" for kind in ("film", "iterations") for name in attacks}
    assert with_films.outcomes == plain.outcomes
    assert with_films.remarks == plain.remarks
    for name, tensor in plain.tensors.items():
        assert torch.equal(tensor, with_films.tensors[name]), name


def test_what_is_kept_is_what_the_attack_handed_out():
    audit = audit_of(SEARCH)
    kept = trial(audit).tensors
    assert kept["iterations/Inverting Gradients"].tolist() == [0, 1, 2, 6, 20]
    film = kept["film/Inverting Gradients"]
    assert (film.dtype, tuple(film.shape)) == (torch.uint8, (4, *SPACE.shape))
    draw = trials.drawn(audit, 0, 4)
    observation = audit.threat.observe(trials.release_of(audit, draw.secret, 0, 4))
    with recording() as made:
        audit.prepare(4).reconstructors["Inverting Gradients"](
            observation, trials.stream(4, "attacker", 0, "Inverting Gradients")
        )
    assert len(made.frames) == 4
    for picture, frame in zip(film, made.frames, strict=True):
        eight = np.round(np.clip(frame.candidates[0].double().numpy(), 0, 1) * 255)
        assert np.array_equal(picture.numpy(), eight)


def frames_of(*batches) -> tuple[Frame, ...]:
    return tuple(Frame(done, 100, batch) for done, batch in enumerate(batches))


class Taken:
    """A recording with these frames."""

    def __init__(self, *batches) -> None:
        self.frames = frames_of(*batches)


def pictures_of(secret: Records, slot: int, found: Reconstruction, *batches, apart=()):
    tensors = film_tensors("A", Taken(*batches), found, secret, slot, apart=apart)
    return tensors.get("film/A"), tensors.get("iterations/A")


def eight(x: torch.Tensor) -> torch.Tensor:
    return x.double().clamp(0, 1).mul(255).round().to(torch.uint8)


def test_every_frame_is_matched_by_itself():
    """Candidates of another restart are in another order."""
    secret = draws(4, 5)
    found = Reconstruction(secret.x.clone())
    orders = ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0])
    for slot in range(4):
        film, iterations = pictures_of(secret, slot, found, *(secret.x[order] for order in orders))
        assert torch.equal(film, eight(secret.x[[slot] * 3]))
        assert iterations.tolist() == [0, 1, 2, 100]


def test_slots_that_stand_apart_take_no_candidate():
    secret = draws(3, 5)
    candidate = secret.x[[0]] * 0.9 + secret.x[[1]] * 0.1
    both = torch.cat([candidate, secret.x[[2]]])
    film, _ = pictures_of(secret, 1, Reconstruction(both), both)
    assert film is None
    film, _ = pictures_of(secret, 1, Reconstruction(both), both, apart=(0,))
    assert torch.equal(film, eight(candidate))


def test_frames_follow_the_candidates_that_count():
    """Of more candidates than records the surest counts, in the frames too."""
    secret, x = draws(1, 5), draws(3, 6).x
    found = Reconstruction(x, confidence=torch.tensor([0.1, 0.9, 0.5]))
    film, _ = pictures_of(secret, 0, found, x, x.flip(0))
    assert torch.equal(film, eight(x[[1, 1]]))
    film, _ = pictures_of(secret, 0, replace(found, confidence=None), x, x.flip(0))
    assert torch.equal(film, eight(x[[0, 2]]))


@pytest.mark.parametrize("count", [1, 2])
def test_frames_that_cannot_be_shown_are_left_out(count):
    secret = draws(count, 5)
    found, broken = Reconstruction(secret.x), torch.full_like(secret.x, float("nan"))
    film, iterations = pictures_of(secret, 0, found, broken, secret.x, broken)
    assert torch.equal(film, eight(secret.x[[0]]))
    assert iterations.tolist() == [1, 100]
    for batches in ([broken, broken], [secret.x, secret.x[:, :, :2]], []):
        assert film_tensors("A", Taken(*batches), found, secret, 0) == {}
    assert film_tensors("A", Taken(secret.x), Reconstruction(secret.x[:0]), secret, 0) == {}


def test_rows_of_tables_have_no_film():
    splits = load("breast_cancer").split(seed=0, train=0.5, held_out=0.2, prior=0.3)
    audit = Audit(
        victim=SharedGradient(mlp(splits.space, hidden=(8,))),
        secrets=splits.train,
        prior=splits.prior,
        attacks=[InvertingGradients(iterations=4)],
        false_positive_rate=0.1,
        trials=2,
    )
    kept = trial(audit).tensors
    assert not [name for name in kept if name.startswith(("film", "iterations"))]
    report = run(audit, seed=0)
    assert [one.film for one in report.findings.exhibits] == [None, None]
    assert STRIP not in render(report)


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_only_the_median_trial_has_a_film(count, tmp_path):
    audit = replace(audit_of(SEARCH), trials=count)
    report = run(audit, seed=2, directory=tmp_path)
    shown = [one for one in report.findings.exhibits if one.film]
    assert [one.place for one in shown] == [count // 2 + 1]
    film, trial_number = shown[0].film, shown[0].trial
    assert film is not None
    assert film.iterations == 20
    assert [one.after for one in film.frames] == [0, 1, 2, 6]
    unit, _ = read_unit(tmp_path / "units" / f"{trial_number:06d}.safetensors", trial_number)
    assert film == film_of(unit.tensors, "Inverting Gradients")
    assert load_report(tmp_path) == report
    assert render(report).count(STRIP) == 1


def test_an_attack_without_frames_has_no_strip():
    report = run(replace(audit_of(LabelOnly()), trials=3), seed=2)
    assert [one.film for one in report.findings.exhibits] == [None] * 3
    assert STRIP not in render(report)
    assert "emerged" not in render(report)


@pytest.mark.slow
def test_films_come_from_other_processes(tmp_path):
    audit = replace(audit_of(SEARCH, batch_size=2), trials=3)
    here = run(audit, seed=2)
    there = run(audit, seed=2, directory=tmp_path, engine=LocalProcesses(1))
    assert any(one.film for one in there.findings.exhibits)
    assert without_times(here) == without_times(there)


class Showing(LabelOnly):
    """Hands out a frame that no film can be made of."""

    name = "Showing"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        inner = super().prepare(public, generator=generator)

        def reconstruct(observation, attacker):
            found = inner(observation, attacker)
            show_frame(0, 10, found.candidates[..., :2])
            return found

        return reconstruct


def test_frames_of_another_shape_stop_no_audit():
    report = run(replace(audit_of(Showing()), trials=2), seed=2)
    assert report.findings.failure is None
    assert [one.film for one in report.findings.exhibits] == [None, None]


def test_a_damaged_film_is_one_sentence():
    audit = replace(audit_of(SEARCH), trials=1)
    found = trial(audit)
    iterations = found.tensors["iterations/Inverting Gradients"]
    for damaged in (iterations.flip(0), iterations[1:], iterations[:0]):
        tensors = {**found.tensors, "iterations/Inverting Gradients": damaged}
        unit = unit_in(0, trial_bytes(replace(found, tensors=tensors)))
        with pytest.raises(BadInput, match=r"delete units/000000\.safetensors"):
            audit.findings([unit], Header(4, (), None, Times()))
