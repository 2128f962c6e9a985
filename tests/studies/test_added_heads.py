"""Adding heads to a study that has a report: what is kept, what it costs, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from head_worlds import LeastSquares, digits, victim
from vestige import run
from vestige.bounds import DPSGD
from vestige.engines import LocalProcesses
from vestige.errors import BadInput, Conflict, Interrupted
from vestige.networks import HeadedModel
from vestige.progress import Progress
from vestige.studies.heads.plan import BLOCK, HeadStudy
from vestige.studies.store import RunFolder
from vestige.victims import ClassCounts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def splits():
    return digits()


@pytest.fixture(scope="module")
def study(splits) -> HeadStudy:
    mechanism = DPSGD(0.05, 0.9, 8, clipping_norm=4.0)
    return HeadStudy(
        LeastSquares(100),
        victim(),
        splits.train,
        splits.prior,
        heads=BLOCK + 3,
        held_out=splits.held_out,
        mechanisms=[mechanism],
        false_positive_rate=0.1,
    )


@pytest.fixture(scope="module")
def whole(study):
    """The larger study, planned so from the start."""
    return run(replace(study, heads=2 * BLOCK), seed=3)


def without_looks(report):
    """What a report measured, without what depends on its confidence."""
    found = report.findings
    rates = [
        (one.name, one.true_positives.hits, one.operating_point.true_positive_rate)
        for one in found.rates.counted
    ]
    return rates, found.exhibit, [p.accuracy for p in found.privacy]


@pytest.fixture(scope="module")
def added(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "heads"
    first = run(study, seed=3, directory=folder)
    steps: list[Progress] = []
    larger = run(
        replace(study, heads=2 * BLOCK),
        seed=3,
        directory=folder,
        watch=lambda where: steps.append(where) or False,
    )
    return folder, first, larger, steps


def test_a_study_with_added_heads_reads_what_a_larger_one_reads(added, whole):
    assert without_looks(added[2]) == without_looks(whole)


def test_full_blocks_are_kept_and_those_that_were_not_full_run_again(added):
    # Two mechanisms, two blocks each; the second block of each held three heads.
    assert added[3][0].done == 2
    assert added[3][0].total == 4


def test_all_additions_share_one_error_and_the_report_says_so(added, study, splits):
    folder, first, larger, _ = added
    assert first.findings.rates.confidence == 0.95
    assert larger.findings.rates.confidence == pytest.approx(0.975)
    assert not any("added" in one for one in first.findings.limits)
    (said,) = [one for one in larger.findings.limits if "added" in one]
    assert "planned with 28 and has 50 now" in said
    assert "97.5% instead of 95%" in said
    assert larger.findings.settings["Heads"] == "50, extended from 28"
    # A lost manifest is rebuilt: units tell what the run was planned with.
    (folder / "manifest.json").unlink()
    again = run(replace(study, heads=2 * BLOCK), seed=3, directory=folder)
    assert again.findings.rates.confidence == pytest.approx(0.975)
    assert RunFolder.existing(folder).earlier_sizes == (28,)
    most = run(replace(study, heads=2 * BLOCK + 2), seed=3, directory=folder)
    assert most.findings.rates.confidence == pytest.approx(1 - 0.05 / 6)
    assert RunFolder.existing(folder).earlier_sizes == (28, 50)


def test_fewer_heads_another_seed_and_too_few_images_are_refused(study, tmp_path):
    run(replace(study, mechanisms=(), heads=4), seed=3, directory=tmp_path / "r")
    before = sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file())
    small = replace(study, mechanisms=(), heads=2)
    with pytest.raises(Conflict, match=r"size 4, not 2; give --heads 4 to resume it, or name"):
        run(small, seed=3, directory=tmp_path / "r")
    with pytest.raises(Conflict, match="seed 3, not 4"):
        run(replace(small, heads=8), seed=4, directory=tmp_path / "r")
    with pytest.raises(BadInput, match="share none"):
        run(replace(small, heads=100_000), seed=3, directory=tmp_path / "r")
    with pytest.raises(Conflict, match="another study, which differs in confidence;"):
        run(replace(small, heads=8, confidence=0.9), seed=3, directory=tmp_path / "r")
    assert sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()) == before


def test_heads_are_added_on_other_engines_with_the_same_result(study, whole, tmp_path):
    run(study, seed=3, directory=tmp_path / "r")
    larger = replace(study, heads=2 * BLOCK)
    report = run(larger, seed=3, directory=tmp_path / "r", engine=LocalProcesses(1))
    assert without_looks(report) == without_looks(whole)


def test_a_study_that_is_stopped_after_its_first_block_says_so(study, tmp_path):
    with pytest.raises(Interrupted, match=r"Stopped after 1 of 2 blocks.*Rerun the same command"):
        run(study, seed=3, directory=tmp_path / "r", watch=lambda where: where.done == 1)
    assert run(study, seed=3, directory=tmp_path / "r").findings.failure is None


def test_a_block_of_another_size_is_damaged(study, tmp_path):
    one = replace(study, mechanisms=(), heads=4)
    run(one, seed=3, directory=tmp_path / "r")
    with RunFolder.opened(
        tmp_path / "r",
        {"kind": one.kind, "identity": one.identity(), "title": one.heading, "size": 4}
        | {"units": 1, "seed": 3},
        one.code(),
    ) as folder:
        unit = folder.read(0)
    with pytest.raises(BadInput, match="damaged"):
        replace(one, heads=6).check(unit)


def test_errors_of_all_additions_add_up_to_the_planned_one(study):
    errors = [1 - study._confidence(range(k)) for k in range(1, 2000)]
    assert 0.0499 < sum(errors) <= 0.05 + 1e-12
    assert study._confidence(()) == study.confidence


def test_a_working_attack_stays_demonstrated_after_many_additions(study, tmp_path):
    one = replace(study, mechanisms=(), heads=8)
    for heads in range(8, 28, 2):
        report = run(replace(one, heads=heads), seed=3, directory=tmp_path / "r")
    assert report.verdict.kind == run(replace(one, heads=26), seed=3).verdict.kind
    assert report.findings.rates.pooled.test.permutations > 20 / (0.05 / 90)


@pytest.mark.parametrize(("first", "then"), [(20, 25), (7, 33), (2, 3)])
def test_a_lost_manifest_forgets_no_addition(study, tmp_path, first, then):
    one = replace(study, mechanisms=(), heads=first)
    run(one, seed=3, directory=tmp_path / "r")
    run(replace(one, heads=then), seed=3, directory=tmp_path / "r")
    (tmp_path / "r" / "manifest.json").unlink()
    again = run(replace(one, heads=then), seed=3, directory=tmp_path / "r")
    assert again.findings.rates.confidence == pytest.approx(0.975)
    assert "extended" in again.findings.settings["Heads"]


def changed(study, **changes):
    return replace(study, victim=replace(study.victim, **changes))


def test_a_folder_of_a_study_that_differs_in_any_part_is_refused(study, tmp_path):
    base = replace(study, mechanisms=(), heads=4)
    training = base.victim.training
    run(base, seed=3, directory=tmp_path / "r")
    tanh = HeadedModel(
        nn.Sequential(*base.victim.model.backbone[:-1], nn.Tanh()), base.victim.model.width, 10
    )
    tanh.load_state_dict(base.victim.model.state_dict())
    others = [
        changed(base, training=replace(training, learning_rate=training.learning_rate + 4e-9)),
        changed(base, training=replace(training, makeup=ClassCounts((2, *(1,) * 9)))),
        changed(base, training=replace(training, makeup=ClassCounts((1, 2, *(1,) * 8)))),
        changed(base, model=tanh),
        replace(base, decoder=lambda features, classes: torch.zeros(len(features), 1, 8, 8)),
    ]
    assert len({one.identity() for one in [base, *others]}) == len(others) + 1
    for other in others:
        with pytest.raises(Conflict, match="another study"):
            run(replace(other, heads=6), seed=3, directory=tmp_path / "r")
