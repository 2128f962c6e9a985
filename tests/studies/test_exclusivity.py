"""The exclusivity condition along batch sizes, widths and training: counted, recorded, resumed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import nn

from pages.audits import changed
from vestige import Audit, networks, run
from vestige.content import document_bytes
from vestige.errors import BadInput
from vestige.reports.audit import AuditReport
from vestige.simulation.gradient import GradientSimulator
from vestige.studies.diagnostics.exclusivity import (
    Stage,
    audited_exclusivity,
    checkpoints,
    exclusivity_curves,
    fully_connected_part,
    hidden_activity,
    sizes_to,
)
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, Normalization, SharedGradient
from worlds import SPACE, LabelOnly, draws, linear_network, sequential, small_audit


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def holds(model: nn.Sequential, batch: torch.Tensor) -> bool:
    """Definition 1 and §8.4 of Pan et al. 2020 on a plain Sequential, without any of our code."""
    signals, value = [], batch
    with torch.no_grad():
        for layer in model:
            value = layer(value)
            if isinstance(layer, nn.ReLU):
                signals.append(value)
    for place, signal in enumerate(signals):
        needed = 2 if place == len(signals) - 1 else 1
        for record in range(len(batch)):
            own = 0
            for neuron in range(signal.shape[1]):
                who = [m for m in range(len(batch)) if signal[m, neuron] > 0]
                own += who == [record]
            if own < needed:
                return False
    return True


@pytest.mark.parametrize("hidden", [(24,), (40,), (60, 30)])
def test_curves_count_what_a_naive_reader_counts(hidden):
    records = draws(40, 1)
    early = networks.mlp(SPACE, hidden, generator=seeded(2))
    late = networks.mlp(SPACE, hidden, generator=seeded(3))
    curves = exclusivity_curves(
        [Stage(early, 0), Stage(late, 350, "own name")],
        records,
        batch_sizes=(1, 2, 3),
        batches=25,
        generator=seeded(4),
        confidence=0.9,
    )
    again, total = seeded(4), 0
    chosen = {
        size: [torch.randperm(40, generator=again)[:size] for _ in range(25)] for size in (1, 2, 3)
    }
    units = "-".join(str(n) for n in (16, *hidden, 3))
    assert [(c.network, c.step) for c in curves] == [(units, 0), ("own name", 350)]
    for curve, model in zip(curves, (early, late)):
        assert [rate.batch_size for rate in curve.rates] == [1, 2, 3]
        for rate in curve.rates:
            held = sum(holds(model, records.x[batch]) for batch in chosen[rate.batch_size])
            assert (rate.held, rate.batches) == (held, 25)
            lower = 0 if held == 0 else beta.ppf(0.05, held, 26 - held)
            upper = 1 if held == 25 else beta.ppf(0.95, held + 1, 25 - held)
            assert (rate.lower, rate.upper) == pytest.approx((lower, upper))
            total += held
    assert 0 < total < 150


def test_a_stage_is_measured_alike_whatever_stands_beside_it():
    records, model = draws(40, 1), networks.mlp(SPACE, (30,), generator=seeded(2))
    other = Stage(networks.mlp(SPACE, (50,), generator=seeded(3)))
    alone = exclusivity_curves([Stage(model)], records, generator=seeded(4))
    both = exclusivity_curves([other, Stage(model)], records, generator=seeded(4))
    assert both[1:] == alone
    assert both[0] != alone[0]


def test_checkpoints_leave_the_model_as_it_is():
    model = linear_network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = {name: tensor + 1 for name, tensor in before.items()}
    late, early = checkpoints(model, {350: trained, 0: before})[::-1]
    assert (early.step, late.step) == (0, 350)
    assert torch.equal(late.network[1].weight, before["1.weight"] + 1)
    assert torch.equal(early.network[1].weight, before["1.weight"])
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    with pytest.raises(BadInput, match="The state of step 7 does not fit"):
        checkpoints(model, {7: {"weight": torch.zeros(1)}})


class Written(nn.Module):
    """ReLU as a function inside forward, after a convolution, and a layer used for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 2, 3)
        self.last = nn.Linear(6, 3)
        self.hidden = nn.Linear(8, 6)
        self.unused = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.relu(self.hidden(torch.tanh(self.body(x)).flatten(1))))


def test_the_fully_connected_part_is_found_by_what_flows_through_it():
    records = draws(30, 1)
    simulator = GradientSimulator(sequential(Written)[0])
    network = simulator.network
    assert fully_connected_part(simulator, records.x) == [network.hidden, network.last]
    (mask,) = hidden_activity(simulator, records.x)
    with torch.no_grad():
        features = torch.tanh(network.body(records.x)).flatten(1)
        expected = network.hidden(features) > 0
    assert np.array_equal(mask, expected.numpy())
    (curve,) = exclusivity_curves([Stage(simulator)], records, batches=3, generator=seeded(1))
    assert (curve.network, curve.reads_features) == ("8-6-3", True)


def test_an_activation_in_place_is_read_as_well():
    model = sequential(
        nn.Flatten,
        lambda: nn.Linear(16, 9),
        lambda: nn.ReLU(inplace=True),
        lambda: nn.Linear(9, 3),
    )
    records = draws(20, 1)
    with torch.no_grad():
        expected = model[1](records.x.flatten(1)) > 0
    assert np.array_equal(hidden_activity(GradientSimulator(model), records.x)[0], expected.numpy())


def test_normalisation_comes_before_the_network():
    model, records = linear_network(), draws(30, 1)
    plain = hidden_activity(GradientSimulator(model), records.x)[0]
    moved = GradientSimulator(model, normalization=Normalization((0.5,), (0.1,)))
    with torch.no_grad():
        expected = model[1](((records.x - 0.5) / 0.1).flatten(1)) > 0
    found = hidden_activity(moved, records.x)[0]
    assert np.array_equal(found, expected.numpy())
    assert not np.array_equal(found, plain)


@pytest.mark.parametrize(
    "activation", [nn.Sigmoid, nn.Tanh, nn.GELU, nn.Identity, lambda: nn.LeakyReLU(0.1)]
)
def test_other_activations_are_refused(activation):
    simulator = GradientSimulator(
        networks.mlp(SPACE, (20,), activation=activation, generator=seeded(1))
    )
    with pytest.raises(BadInput, match="hidden fully connected layer with ReLU"):
        fully_connected_part(simulator, draws(30, 1).x)


def test_batch_norm_in_train_mode_is_refused():
    model = sequential(
        nn.Flatten,
        lambda: nn.BatchNorm1d(16),
        lambda: nn.Linear(16, 9),
        nn.ReLU,
        lambda: nn.Linear(9, 3),
    )
    with pytest.raises(BadInput, match="depend on the batch"):
        fully_connected_part(GradientSimulator(model, mode="train"), draws(9, 1).x)
    assert len(fully_connected_part(GradientSimulator(model, mode="eval"), draws(9, 1).x)) == 2


def test_sizes():
    assert sizes_to(16, 100) == (1, 2, 4, 8, 16)
    assert sizes_to(24, 100) == (1, 2, 4, 8, 16, 24)
    assert sizes_to(1, 100) == (1, 2, 4, 8)
    assert sizes_to(3, 100) == (1, 2, 3, 4, 8)
    assert sizes_to(3, 5) == (1, 2, 3, 4)
    assert sizes_to(300, 2000) == (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)


def same(left: AuditReport, right: AuditReport) -> bool:
    return document_bytes(changed(left, times=right.findings.times)) == document_bytes(right)


def audit_of(*attacks, **changes) -> Audit:
    return small_audit(list(attacks or [LabelOnly()]), threat=HonestServer(labels=True), **changes)


def audit_with_stages(**changes) -> Audit:
    wide = networks.mlp(SPACE, (80,), generator=seeded(6))
    return audit_of(batch_size=3, exclusivity_stages=[Stage(wide, step=5)], **changes)


def test_an_audit_holds_the_rates_of_its_network_and_of_the_stages():
    report = run(replace(audit_with_stages(), trials=2), seed=4)
    found = report.findings.exclusivity
    assert found is not None
    assert (found.records, found.of, found.confidence) == (60, 60, 0.95)
    audited, wide = found.curves
    assert (audited.network, audited.step, audited.audited) == ("16-12-3", None, True)
    assert (wide.network, wide.step, wide.audited) == ("16-80-3", 5, False)
    for curve in found.curves:
        assert [(r.batch_size, r.batches) for r in curve.rates] == [
            (size, 200) for size in (1, 2, 3, 4, 8)
        ]
    assert audited.rates[2].value < wide.rates[2].value
    assert found != run(replace(audit_with_stages(), trials=2), seed=5).findings.exclusivity
    assert report.without_secrets().findings.exclusivity == found


def test_the_attacks_do_not_decide_and_do_not_change_it():
    """Neither what an attack draws nor how many trials there are touches the rates."""
    alone = run(replace(audit_of(), trials=1), seed=4).findings.exclusivity
    twice = run(replace(audit_of(LabelOnly(), LabelOnly()), trials=3), seed=4).findings.exclusivity
    assert alone == twice
    assert alone is not None


def test_a_resumed_run_holds_the_same_rates(tmp_path):
    whole = run(replace(audit_with_stages(), trials=4), seed=2, directory=tmp_path)
    for name in ("units/000001.safetensors", "units/000003.safetensors", "report.json"):
        (tmp_path / name).unlink()
    assert same(run(replace(audit_with_stages(), trials=4), seed=2, directory=tmp_path), whole)
    assert same(run(replace(audit_with_stages(), trials=4), seed=2), whole)
    # Stages decide nothing that a trial finds, so a finished run may be shown beside others.
    bare = run(replace(audit_of(batch_size=3), trials=4), seed=2, directory=tmp_path)
    assert bare.findings.exclusivity is not None
    assert whole.findings.exclusivity is not None
    assert bare.findings.exclusivity.curves == whole.findings.exclusivity.curves[:1]


@pytest.mark.parametrize(
    "victim",
    [
        SharedGradient(networks.mlp(SPACE, (), generator=seeded(1))),
        SharedGradient(networks.mlp(SPACE, (9,), activation=nn.Tanh, generator=seeded(1))),
    ],
    ids=["no hidden layer", "no ReLU"],
)
def test_networks_the_condition_says_nothing_about_have_none(victim):
    assert run(replace(audit_of(victim=victim), trials=1)).findings.exclusivity is None
    report = run(replace(audit_with_stages(victim=victim), trials=1))
    assert report.findings.exclusivity is not None
    assert [curve.audited for curve in report.findings.exclusivity.curves] == [False]


def test_several_local_steps_are_no_single_gradient():
    victim = FederatedUpdate(linear_network(), LocalTraining(2, 0.1))
    settings = {"batch_size": 2, "seed": 0, "confidence": 0.95}
    assert audited_exclusivity(victim.simulator, (), draws(60, 1), **settings) is None
    with pytest.raises(BadInput, match="takes 2 local steps"):
        audited_exclusivity(victim.simulator, [Stage(linear_network())], draws(60, 1), **settings)
    once = FederatedUpdate(linear_network(), LocalTraining(1, 0.1))
    assert audited_exclusivity(once.simulator, (), draws(60, 1), **settings) is not None


def test_large_pools_are_sampled(monkeypatch):
    monkeypatch.setattr("vestige.studies.diagnostics.exclusivity.MOST_RECORDS", 20)
    found = audited_exclusivity(
        GradientSimulator(linear_network()), (), draws(60, 1), batch_size=2, seed=0, confidence=0.95
    )
    assert found is not None
    assert (found.records, found.of) == (20, 60)


def test_stages_are_run_as_the_victim_runs():
    """A stage with the victim's own weights has the victim's rates: same normalisation."""
    normalization = Normalization((0.5,), (0.1,))
    victim = SharedGradient(linear_network(), normalization=normalization)
    report = run(
        replace(audit_of(victim=victim, exclusivity_stages=[Stage(linear_network())]), trials=1)
    )
    assert report.findings.exclusivity is not None
    audited, own = report.findings.exclusivity.curves
    assert audited.rates == own.rates


def test_bad_stages_are_said_before_anything_runs(tmp_path):
    with pytest.raises(BadInput, match="write \\[Stage\\(model, step=350\\)\\]"):
        audit_of(exclusivity_stages=[linear_network()])
    with pytest.raises(BadInput, match="A stage holds a network, not a OrderedDict"):
        Stage(linear_network().state_dict())
    with pytest.raises(BadInput, match="0 or more"):
        Stage(linear_network(), step=-1)
    misfit = sequential(lambda: nn.Linear(5, 4), nn.ReLU, lambda: nn.Linear(4, 3))
    audit = audit_of(exclusivity_stages=[Stage(misfit)])
    with pytest.raises(BadInput, match="cannot be run on these records") as caught:
        run(replace(audit, trials=1), directory=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_reports_with_and_without_the_rates_load():
    report = run(replace(audit_with_stages(), trials=1), seed=4)
    text = report.model_dump_json()
    assert AuditReport.model_validate_json(text) == report
    older = json.loads(text)
    del older["findings"]["exclusivity"]
    loaded = AuditReport.model_validate(older)
    assert loaded.findings.exclusivity is None
    assert loaded == changed(report, exclusivity=None)
