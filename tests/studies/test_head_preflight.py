"""Head studies whose parts do not fit are refused in one sentence, before a head is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import vestige
from vestige.attacks import HeadInversion
from vestige.errors import BadInput
from vestige.interfaces import ModelRelease, Public, Reconstruction, Reconstructor
from vestige.mechanisms import DPSGD
from vestige.networks import HeadedModel
from vestige.records import ImageSpace, Prior, Records
from vestige.studies.heads.plan import HeadStudy
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead

SPACE = ImageSpace(1, 4, 4, ("a", "b"))
TRAINING = HeadTraining(ClassCounts((1, 1)), epochs=2, learning_rate=0.1)


@dataclass(frozen=True)
class Unprepared:
    """An attack that must not be reached."""

    name = "Unprepared"
    summary = "fails"
    needs = "nothing"
    cites = "nobody"
    reads = (ModelRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        raise AssertionError("the study was not refused before its attack was prepared")


def records(seed: int, count: int = 24) -> Records:
    generator = torch.Generator().manual_seed(seed)
    return Records(
        torch.rand((count, 1, 4, 4), generator=generator), torch.arange(count) % 2, SPACE
    )


def victim(
    training: HeadTraining = TRAINING, *, inputs: int = 16, outputs: int = 2, factor: float = 1.0
) -> ReleasedHead:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        layer = nn.Linear(inputs, 6)
        layer.weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(factor)
    backbone = nn.Sequential(nn.Flatten(), layer, nn.ReLU()).eval()
    return ReleasedHead(HeadedModel(backbone, 6, outputs), training)


STUDY = HeadStudy(Unprepared(), victim(), records(0), Prior(records(1)), heads=5)
PRIVATE = DPSGD(noise_multiplier=1.0, sampling_rate=0.5, steps=3, clipping_norm=1.0)
OVERLAPPING = HeadTraining(OneAgainstRest(1, 11), epochs=2, learning_rate=0.1)


def mixed() -> ReleasedHead:
    owner = victim()
    owner.model.backbone.double()
    return owner


def raising(features: Tensor, labels: Tensor) -> Tensor:
    raise KeyError("no such class")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda: {"victim": victim(inputs=9)}, "does not accept records of shape"),
        (lambda: {"victim": mixed()}, "computes in float64 and the head in float32"),
        (lambda: {"victim": victim(factor=float("nan"))}, "NaN or infinite"),
        (lambda: {"held_out": records(2, 0), "mechanisms": [PRIVATE]}, "held_out has no records"),
        (
            lambda: {"held_out": replace(records(2), space=ImageSpace(1, 4, 4, ("c", "d")))},
            "different spaces",
        ),
        (lambda: {"shadows": torch.ones(10, 3)}, "a row of 14 numbers"),
        (lambda: {"shadows": torch.ones(1, 14)}, "two or more"),
        (lambda: {"shadows": torch.full((4, 14), float("nan"))}, "shadows holds NaN"),
        (lambda: {"decoder": lambda features, labels: torch.zeros(3)}, r"returned \(3,\)"),
        (lambda: {"decoder": lambda features, labels: None}, "returned NoneType"),
        (lambda: {"decoder": raising}, "KeyError"),
        (lambda: {"victim": victim(OVERLAPPING, outputs=1)}, "with every other one"),
    ],
)
def test_refused_before_the_attack_is_prepared(changes, words):
    with pytest.raises(BadInput, match=words) as refused:
        vestige.run(replace(STUDY, **changes()), seed=0)
    assert "\n" not in str(refused.value)


def test_what_fits_reaches_the_attack():
    fitting = {"held_out": records(2), "shadows": torch.ones(4, 14)}
    study = replace(STUDY, decoder=lambda f, labels: torch.zeros((len(f), 1, 4, 4)), **fitting)
    assert study.preflight(0) == ()
    with pytest.raises(AssertionError, match="not refused"):
        study.prepare(0)


@pytest.mark.parametrize("momentum", [0.0, 0.99])
def test_trainings_whose_weight_decay_diverges(momentum):
    wild = {"learning_rate": 1e6, "weight_decay": 5.0, "momentum": momentum}
    with pytest.raises(BadInput, match="Weight decay alone"):
        replace(TRAINING, epochs=400, **wild)
    few = replace(TRAINING, epochs=2, **wild)
    assert abs(few.initial_share) < 1e30
    assert few.final_noise == 0


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_up_to_the_limit_initial_weights_do_not_grow(momentum):
    """Heavy-ball steps on λw²/2 are stable exactly where ηλ < 2(1 + momentum)."""
    limit = 2 * (1 + momentum)
    below = replace(
        TRAINING, learning_rate=0.999 * limit, weight_decay=1.0, momentum=momentum, epochs=4_000
    )
    assert abs(below.initial_share) < 1
    assert below.final_noise == 0  # and no power of 1 − ηλ overflows
    with pytest.raises(BadInput, match="without end"):
        replace(below, learning_rate=1.1 * limit)


def test_heads_that_diverge_are_not_released():
    wild = replace(TRAINING, learning_rate=3e38, epochs=4)
    owner = victim(wild)
    secret = records(0)[torch.tensor([0, 1])]
    with pytest.raises(BadInput, match="lower the learning_rate"):
        owner.release(secret, generator=torch.Generator().manual_seed(0))
    attack = HeadInversion(examples=100, shadows=4, polish_steps=1, seconds=1)
    with pytest.raises(BadInput, match="simulated heads diverge"):
        vestige.run(replace(STUDY, attack=attack, victim=owner), seed=0)


def test_features_that_are_no_numbers_for_a_single_record():
    images = records(0)
    images.x[-1] = 1.0

    class Logarithm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (1 - x.flatten(1)[:, :6]).log()

    owner = ReleasedHead(HeadedModel(Logarithm(), 6, 2), TRAINING)
    with pytest.raises(BadInput, match="NaN or infinite"):
        owner.release(images[torch.tensor([0, 23])], generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Gray(Unprepared):
    """Draws gray images."""

    def prepare(self, public: Public, *, generator: torch.Generator):
        return lambda seen, generator: Reconstruction(
            torch.full((2, 1, 4, 4), 0.5), torch.arange(2)
        )


def test_models_in_double_precision():
    owner = victim()
    owner.model.double()
    report = vestige.run(replace(STUDY, attack=Gray(), victim=owner), seed=0)
    assert report.findings.rates.counted
    attack = HeadInversion(examples=100, shadows=4, polish_steps=1, seconds=1)
    assert vestige.run(replace(STUDY, attack=attack, victim=owner), seed=0).findings.rates.counted
