"""Exact inversion as a user meets it: the order of its methods, its reasons, what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vestige import Audit, Prior, Records, run
from vestige.attacks import ExactInversion
from vestige.attacks.exact_inversion import attack as exact_inversion
from vestige.attacks.exact_inversion.layers import Recovered
from vestige.cli.app import main
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.networks import mlp
from vestige.records import Column, ImageSpace, TableSpace
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import one_hot
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import sequential

SPACE = ImageSpace(1, 5, 5, tuple("abcd"))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def records(count: int, seed: int) -> Records:
    x = torch.rand((count, *SPACE.shape), generator=stream(seed))
    return Records(x, torch.arange(count) % 4, SPACE)


def known(network: nn.Module, normalization: Normalization | None = None) -> Public:
    return Public(GradientSimulator(network, normalization=normalization), Prior(records(60, 9)))


def released(public: Public, batch: int, seed: int = 1) -> tuple[Records, Observation]:
    secret = records(batch, seed)
    gradient = public.simulator(secret.x, one_hot(secret.y, 4))
    release = GradientRelease({name: t.detach() for name, t in gradient.items()})
    return secret, Observation(release, Hints())


def inverted(public: Public, observation: Observation, **settings):
    reconstruct = ExactInversion(**settings).prepare(public, generator=stream(2))
    return reconstruct(observation, stream(3))


def told(observation: Observation, batch_size: int) -> Observation:
    return replace(observation, hints=Hints(batch_size=batch_size))


def worst(candidates: Tensor, x: Tensor) -> float:
    """Largest distance of a record to its nearest candidate."""
    gaps = torch.cdist(x.flatten(1).double(), candidates.flatten(1).double())
    return float(gaps.min(1).values.max()) if len(candidates) else float("inf")


CENTRED = Normalization((0.5,), (0.25,))


def test_the_lift_comes_first_and_ends_the_chain():
    public = known(mlp(SPACE, (120,), generator=stream()), CENTRED)
    secret, observation = released(public, 4)
    untold = inverted(public, observation)
    assert worst(untold.candidates, secret.x) < 1e-4
    assert untold.info["certified"] == 0
    assert float(untold.confidence.max()) <= 0.5
    assert "batch size is unknown" in untold.remark
    found = inverted(public, told(observation, 4))
    assert worst(found.candidates, secret.x) < 1e-4
    assert found.info["method"] == "lift"
    assert found.info["batch size"] == found.info["certified"] == 4
    assert found.info["rank"] == (
        "The first layer's gradient has rank 4 above rounding of float32: so many different "
        "records."
    )
    assert not any(key.endswith(("handed over", "fell short")) for key in found.info)
    assert not found.remark


def test_sampling_takes_over_where_the_lift_lacks_neurons():
    public = known(mlp(SPACE, (70,), generator=stream()), CENTRED)
    secret, observation = released(public, 9)
    found = inverted(public, told(observation, 9))
    assert worst(found.candidates, secret.x) < 1e-3
    assert found.info["method"] == "sampling"
    assert found.info["certified"] == 9
    # Unknowns of the lift: b(b+1)/2 + b·min(b, d₂) − b with b = 9 and d₂ = 4.
    assert "9 records need 72 live neurons" in found.info["lift handed over"]
    assert "exclusive neurons fell short" not in found.info
    assert not found.remark


def test_exclusive_neurons_come_last_and_a_partial_answer_is_an_answer():
    public = known(mlp(SPACE, (70,), generator=stream()), CENTRED)
    secret, observation = released(public, 9)
    found = inverted(public, observation, sampling_draws=10)
    assert "and 10 are allowed" in found.info["sampling handed over"]
    assert found.info["method"] == "exclusive neurons"
    assert "exclusive neurons fell short" in found.info
    assert found.info["certified"] == 0
    assert "9 of the records need 72 live neurons" in found.remark
    assert 0 < len(found.candidates) < 9
    # The records that neurons show alone are right, and a part of a batch is never certified.
    assert worst(secret.x, found.candidates) < 1e-3
    assert float(found.confidence.max()) <= 0.5
    assert not found.diverged


def test_methods_run_in_order_and_the_best_partial_answer_is_kept(monkeypatch):
    public = known(mlp(SPACE, (120,), generator=stream()))
    _, observation = released(public, 4)
    ran: list[str] = []

    def stub(name: str, certified: int):
        def method(head, **_settings) -> Recovered:
            ran.append(name)
            found = Recovered.nothing(head, 4, f"{name} says why.")
            found.inputs[:certified] = len(ran)
            found.labels[:certified] = 0
            found.certified[:certified] = True
            return found

        return method

    for name, certified in (("lifted", 1), ("sampling", 3), ("exclusive", 2)):
        monkeypatch.setattr(exact_inversion, f"{name}_inversion", stub(name, certified))
    found = inverted(public, observation)
    assert ran == ["lifted", "sampling", "exclusive"]
    assert found.info["method"] == "sampling"
    assert len(found.candidates) == 3
    assert found.info["lift handed over"] == "lifted says why."
    assert found.info["sampling handed over"] == "sampling says why."
    assert found.info["exclusive neurons fell short"] == "exclusive says why."
    assert not found.diverged


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU])
def test_without_relu_the_activation_is_named(activation):
    network = sequential(
        nn.Flatten, lambda: nn.Linear(25, 40), activation, lambda: nn.Linear(40, 4)
    )
    with pytest.raises(BadInput) as refused:
        ExactInversion().prepare(known(network), generator=stream())
    assert str(refused.value) == (
        "The network's logits do not come from fully connected layers with ReLU between them (it "
        f"has {activation.__name__}): exact inversion needs a hidden fully connected layer, then "
        "ReLU, before the last one; try InvertingGradients, which needs neither."
    )


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([lambda: nn.Conv2d(1, 4, 5), nn.Flatten], "has no fully connected layer"),
        (
            [
                lambda: nn.Conv2d(1, 1, 3, padding=1),
                nn.Flatten,
                lambda: nn.Linear(25, 40),
                nn.ReLU,
                lambda: nn.Linear(40, 4),
            ],
            "reads features, not records",
        ),
        ([nn.Flatten, lambda: nn.Linear(25, 4)], "hidden fully connected layer, then ReLU"),
        (
            [
                nn.Flatten,
                lambda: nn.Linear(25, 25),
                nn.Tanh,
                lambda: nn.Linear(25, 40),
                nn.ReLU,
                lambda: nn.Linear(40, 4),
            ],
            "reads features, not records",
        ),
    ],
    ids=["no linear layer", "convolution below", "no hidden layer", "tanh below"],
)
def test_networks_it_cannot_read_are_refused_before_any_release(layers, said):
    with pytest.raises(BadInput, match=r"try .*InvertingGradients") as refused:
        ExactInversion().prepare(known(sequential(*layers)), generator=stream())
    assert said in str(refused.value)


@pytest.mark.parametrize("missing", ["1.weight", "1.bias", "3.weight"])
def test_a_gradient_with_missing_layers_is_named(missing):
    public = known(mlp(SPACE, (120,), generator=stream()))
    _, observation = released(public, 2)
    tensors = {name: t for name, t in observation.release.tensors.items() if name != missing}
    with pytest.raises(BadInput, match=rf"no gradient of '{missing}'.*try InvertingGradients"):
        inverted(public, Observation(GradientRelease(tensors), Hints()))


def dead_network() -> nn.Module:
    """All neurons of the hidden layer silent for records in [0, 1]."""
    network = mlp(SPACE, (30,), generator=stream())
    layer = next(m for m in network.modules() if isinstance(m, nn.Linear))
    with torch.no_grad():
        layer.weight.abs_().neg_()
        layer.bias.fill_(-1)
    return network


def test_a_dead_layer_leaves_nothing_and_says_so():
    public = known(dead_network())
    _, observation = released(public, 3)
    found = inverted(public, observation)
    assert found.diverged
    assert len(found.candidates) == 0
    assert found.info["method"] == "none"
    assert "rank 0" in found.info["rank"]
    assert "zero or below its noise" in found.remark
    assert "another round" in found.remark


def test_a_batch_too_large_names_the_neurons_it_needs():
    public = known(mlp(SPACE, (24,), generator=stream()))
    secret, observation = released(public, 15)
    observation = Observation(observation.release, Hints(batch_size=15))
    found = inverted(public, observation)
    # 15·16/2 + 15·4 − 15 = 165.
    assert found.remark == (
        "To be separated for certain, 15 of the records need 165 live neurons in the first layer, "
        "and it has 24: try InvertingGradients, which does not separate them first, or a smaller "
        "batch."
    )
    assert found.diverged == (len(found.candidates) == 0)
    sure = found.candidates[found.confidence > 0.99]
    assert all(float((secret.x - one).flatten(1).norm(dim=1).min()) < 1e-2 for one in sure)


def test_a_batch_of_full_rank_may_hold_more_records():
    public = known(mlp(SPACE, (8,), generator=stream()))
    _, observation = released(public, 30)
    found = inverted(public, observation)
    assert "the most it can have" in found.info["rank"]
    assert "more records than it can show" in found.info["rank"]
    # 8·9/2 + 8·4 − 8 = 60.
    assert "8 records and more, which need 60 live neurons" in found.remark
    assert "where it has 8: try InvertingGradients" in found.remark
    exact = inverted(public, observation, noise="float32")
    assert "there are as many records, or more" in exact.info["rank"]


@pytest.mark.parametrize("size", [2, None])
def test_a_pair_of_one_label_in_a_narrow_layer_is_not_certified_as_its_mean(size):
    space = TableSpace(tuple(Column(f"feature {i}") for i in range(16)), tuple("abc"))
    # Batches that did, and a few others.
    for seed in (0, 1, 2, 15, 29, 51, 54, 65):
        x = torch.rand((2, 16), generator=stream(seed))
        secret = Records(x, torch.full((2,), seed % 3), space)
        prior = Records(torch.rand((20, 16), generator=stream(90)), torch.arange(20) % 3, space)
        public = Public(GradientSimulator(mlp(space, (8,), generator=stream(seed))), Prior(prior))
        gradient = public.simulator(secret.x, one_hot(secret.y, 3))
        release = GradientRelease({name: t.detach() for name, t in gradient.items()})
        observation = Observation(release, Hints(batch_size=size))
        found = inverted(public, observation, sampling_draws=256)
        sure = found.candidates[found.confidence > 0.5]
        assert len(sure) == found.info["certified"]
        gaps = torch.cdist(sure.double(), x.double()) / x.double().norm(dim=1)
        assert bool((gaps.amin(1) < 0.01).all())


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 3e-3])
def test_small_records_that_look_like_their_mean_are_not_certified(scale):
    """Loss vectors of one label that agree in half precision: without a told size, one record."""
    network = mlp(SPACE, (64,), generator=stream())
    public = known(network)
    x = torch.randn((2, *SPACE.shape), generator=stream(3)) * scale
    pair = Records(x, torch.tensor([3, 3]), SPACE)
    gradient = public.simulator(pair.x, one_hot(pair.y, 4))
    halves = GradientRelease({name: value.half() for name, value in gradient.items()})
    untold = inverted(public, Observation(halves, Hints()))
    assert untold.info["certified"] == 0
    assert not len(untold.candidates) or float(untold.confidence.max()) <= 0.5
    found = inverted(public, told(Observation(halves, Hints()), 2))
    for one, sure in zip(found.candidates, found.confidence):
        error = (one - pair.x).flatten(1).norm(dim=1) / pair.x.flatten(1).norm(dim=1)
        assert sure <= 0.5 or error.min() < 0.01


def audited(network: nn.Module, batch_size: int):
    audit = Audit(
        victim=SharedGradient(network),
        secrets=records(60, 1),
        prior=Prior(records(60, 9)),
        attacks=[ExactInversion()],
        batch_size=batch_size,
        threat=HonestServer(),
        false_positive_rate=0.1,
    )
    return run(replace(audit, trials=3), seed=0)


def test_an_audit_says_what_was_too_large():
    report = audited(mlp(SPACE, (24,), generator=stream()), 15)
    assert report.verdict.kind is not VerdictKind.DEMONSTRATED
    remarks = {c.sentence for c in report.judgement.checks if c.outcome is CheckOutcome.REMARK}
    assert any("records need" in r and "try InvertingGradients" in r for r in remarks)
    assert len([r for r in remarks if r.startswith("Exact inversion")]) <= 2


def test_an_audit_of_a_network_it_cannot_read_is_invalid():
    report = audited(mlp(SPACE, (24,), activation=nn.Tanh, generator=stream()), 1)
    assert report.verdict.kind is VerdictKind.INVALID
    assert "it has Tanh" in report.verdict.lede
    assert "try InvertingGradients" in report.verdict.lede


def test_the_command_line_refuses_with_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    network = mlp(SPACE, (24,), activation=nn.Tanh, generator=stream())
    _, observation = released(known(network), 2)
    save_file(dict(observation.release.tensors), "gradient.safetensors")
    Path("tanh.py").write_text(
        "import torch\n"
        "from vestige import ImageSpace\n"
        "from vestige.networks import mlp\n"
        "def made():\n"
        "    space, generator = ImageSpace(1, 5, 5, tuple('abcd')), torch.Generator()\n"
        "    return mlp(space, (24,), activation=torch.nn.Tanh, generator=generator)\n"
    )
    words = "invert gradient.safetensors --model tanh.py:made --shape 1,5,5 --classes 4"
    words += " --batch-size 2 --attack exact-inversion --untrained --out out"
    monkeypatch.setattr(sys, "argv", ["vestige", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("vestige: The network's logits do not come from fully connected layers")
    assert said.count("\n") == 1
