"""Every public constructor refuses what it cannot use, in one sentence that names the choices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import nn

import vestige
from constructor_worlds import public_dataclasses, valid_objects
from vestige import ImageSpace, Records, VestigeError, mechanisms, networks, run
from vestige.attacks import DeepLeakage, ExactInversion, FeatureInversion, InvertingGradients
from vestige.choices import check_choice
from vestige.datasets import from_tensors
from vestige.interfaces import Release
from vestige.networks import BareImprint, Bins, HeadedModel, ImprintedModel
from vestige.records import Prior
from vestige.reports.parts import VerdictKind
from vestige.simulation.simulator import Simulator
from vestige.victims import (
    ClippedNoise,
    FederatedUpdate,
    LocalTraining,
    Normalization,
    ReleasedHead,
    SharedGradient,
    trained,
)
from worlds import CLASSES, SPACE, draws, linear_network, small_audit


def hints_of(kind: type) -> dict[str, object]:
    """Annotations by field, with the names that modules import for type checkers alone."""
    names = {"DPSGD": mechanisms.DPSGD}
    names |= {"Simulator": Simulator, "Prior": Prior, "Records": Records}
    names |= {"Normalization": Normalization, "Release": Release}
    hints = get_type_hints(kind, localns=names)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def members(hint: object) -> tuple[object, ...]:
    parts = get_args(hint) if "Union" in str(get_origin(hint)) + str(type(hint)) else (hint,)
    return tuple(part for part in parts if part is not type(None))


FIELDS = [
    (valid, name, hint) for valid in valid_objects() for name, hint in hints_of(type(valid)).items()
]


def cases(chosen) -> list:
    return [
        pytest.param(valid, name, hint, id=f"{type(valid).__name__}.{name}")
        for valid, name, hint in FIELDS
        if chosen(members(hint))
    ]


def refused(valid: object, name: str, value: object) -> str:
    """What is said where a field is given a value."""
    with pytest.raises(VestigeError) as problem:
        dataclasses.replace(valid, **{name: value})
    said = str(problem.value)
    assert said.endswith((".", "?"))
    assert "\n" not in said
    return said


def test_every_public_dataclass_is_in_the_table():
    tried = {type(valid) for valid in valid_objects()}
    missing = [kind.__name__ for kind in public_dataclasses() if kind not in tried]
    assert missing == []
    assert len(tried) > 60


@pytest.mark.parametrize(
    ("valid", "name", "hint"), cases(lambda parts: any(get_origin(p) is Literal for p in parts))
)
def test_a_misspelt_choice_names_the_options(valid, name, hint):
    (literal,) = (part for part in members(hint) if get_origin(part) is Literal)
    for option in get_args(literal):
        said = refused(valid, name, f"{option[:-1]}x")
        assert all(repr(other) in said for other in get_args(literal))
        assert name in said
    optional = type(None) in get_args(hint)
    for value in (*(() if optional else (None,)), 0, True, object()):
        assert repr(get_args(literal)[0]) in refused(valid, name, value)


@pytest.mark.parametrize(("valid", "name", "hint"), cases(lambda parts: int in parts))
def test_whole_numbers_are_whole(valid, name, hint):
    for value in (True, 1.5, math.nan, math.inf, "3", [3]):
        refused(valid, name, value)


@pytest.mark.parametrize(("valid", "name", "hint"), cases(lambda parts: float in parts))
def test_numbers_are_finite(valid, name, hint):
    for value in (True, "much", [0.1], float, lambda: 1):
        refused(valid, name, value)
    for value in (math.nan, math.inf, -math.inf):
        if (type(valid).__name__, name) in ANY:
            assert str(getattr(dataclasses.replace(valid, **{name: value}), name)) == str(value)
        else:
            refused(valid, name, value)


ANY = {("Reconstruction", "objective")}
"""Numbers that may be of any size: an attack that diverged says so with its objective."""

SIGNED = {("Column", "center"), ("HeadSimulator", "order"), *ANY}
"""Numbers that may be negative: a mean, a seed of torch, an objective."""


@pytest.mark.parametrize(
    ("valid", "name", "hint"), cases(lambda parts: int in parts or float in parts)
)
def test_negative_numbers(valid, name, hint):
    if (type(valid).__name__, name) in SIGNED:
        assert getattr(dataclasses.replace(valid, **{name: -1}), name) == -1
    else:
        refused(valid, name, -1)


@pytest.mark.parametrize(("valid", "name", "hint"), cases(lambda parts: parts == (str,)))
def test_texts_are_text(valid, name, hint):
    for value in (3, str, b"text"):
        refused(valid, name, value)


def is_mapping(parts: tuple[object, ...]) -> bool:
    return any(get_origin(part) is Mapping for part in parts)


@pytest.mark.parametrize(("valid", "name", "hint"), cases(is_mapping))
def test_mappings_are_mappings(valid, name, hint):
    for value in ("trian", 3, [("weight", 1)], dict):
        refused(valid, name, value)


@pytest.mark.parametrize(("valid", "name", "hint"), cases(lambda parts: parts == (bool,)))
def test_flags_are_true_or_false(valid, name, hint):
    for value in ("yes", 1, 0.0):
        assert "True or False" in refused(valid, name, value)


def is_object(parts: tuple[object, ...]) -> bool:
    plain = (bool, int, float, str)
    return any(isinstance(part, type) and part not in plain for part in parts)


@pytest.mark.parametrize(("valid", "name", "hint"), cases(is_object))
def test_parts_are_objects_of_their_kind(valid, name, hint):
    for value in ("text", 3, object()):
        refused(valid, name, value)
    kinds = [part for part in members(hint) if isinstance(part, type)]
    refused(valid, name, kinds[0])


def test_modules_are_neither_classes_nor_functions():
    local = LocalTraining(1, 0.1)
    makers = (
        SharedGradient,
        lambda model: FederatedUpdate(model, local),
        lambda model: HeadedModel(model, 16, 3),
        lambda model: ImprintedModel(model, SPACE, Bins(torch.tensor([0.0, 1.0]))),
        lambda model: trained(model, draws(9, 0), steps=1),
    )
    for make in makers:
        with pytest.raises(VestigeError, match=r"not the class Flatten: write Flatten\(…\)"):
            make(nn.Flatten)
        with pytest.raises(VestigeError, match=r"torch\.nn\.Module, not a function"):
            make(lambda x: x)
        with pytest.raises(VestigeError, match=r"torch\.nn\.Module, not an OrderedDict"):
            make(linear_network().state_dict())


def test_the_nearest_option_is_suggested():
    with pytest.raises(VestigeError, match="'train' or 'eval', not 'trian': did you mean 'train'"):
        SharedGradient(linear_network(), mode="trian")
    with pytest.raises(VestigeError, match="'mean' or 'sum', not 'avg': choose one of them"):
        SharedGradient(linear_network(), reduction="avg")
    with pytest.raises(VestigeError, match="must be 1, 2 or 3, not '2'"):
        check_choice("level", "2", (1, 2, 3))


def test_normalisations_are_tuples_that_fit_the_channels():
    assert Normalization([0.5], [0.2]) == Normalization((0.5,), (0.2,))
    for mean, std in ((0.5, 0.5), (("a",), (1.0,)), ((0.5,), (math.nan,)), ((0.5,), (0.0,))):
        with pytest.raises(VestigeError):
            Normalization(mean, std)
    with pytest.raises(VestigeError, match="Normalization, not a tuple"):
        SharedGradient(linear_network(), normalization=((0.5,), (0.5,)))
    three = Normalization((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    with pytest.raises(VestigeError, match="3 means and deviations and the records have 1 channel"):
        three(torch.zeros(2, 1, 4, 4))
    assert three(torch.zeros(2, 3, 4, 4)).shape == (2, 3, 4, 4)


def test_labels_from_one_are_told_to_start_at_zero():
    x = torch.zeros(3, *SPACE.shape)
    with pytest.raises(VestigeError, match="0 … 2; subtract 1 from every label"):
        Records(x, torch.tensor([1, 2, 3]), SPACE)
    with pytest.raises(VestigeError, match=r"must lie in 0 … 2\.$"):
        Records(x, torch.tensor([0, 2, 7]), SPACE)
    with pytest.raises(VestigeError, match="subtract 1"):
        from_tensors(x, torch.tensor([1, 2, 3]), class_names=("a", "b", "c"))


def test_functions_check_their_numbers():
    audit = small_audit([InvertingGradients(iterations=2)])
    for trials in (True, 1.5, "2"):
        with pytest.raises(VestigeError, match="trials of Audit must be a whole number"):
            run(replace(audit, trials=trials))
    with pytest.raises(VestigeError, match="seed of run"):
        run(replace(audit, trials=1), seed=-1)
    with pytest.raises(VestigeError, match="run takes a study, such as an Audit"):
        run("audit.py")
    for hidden in (200, (0,), (1.5,), "12", (True,)):
        with pytest.raises(VestigeError):
            networks.mlp(SPACE, hidden=hidden)
    with pytest.raises(VestigeError, match="width of convnet"):
        networks.convnet(SPACE, width=2.5)
    with pytest.raises(VestigeError, match="needs a space"):
        BareImprint((1, 4, 4))
    with pytest.raises(VestigeError, match="width of HeadedModel"):
        HeadedModel(nn.Flatten(), 16.0, 3)


def test_a_loss_must_not_be_reduced():
    victim = SharedGradient(linear_network(), loss=nn.CrossEntropyLoss())
    with pytest.raises(VestigeError, match=r"one value for each .*reduction='none'"):
        victim.release(draws(3, 0), generator=torch.Generator())
    with pytest.raises(VestigeError, match="not the class CrossEntropyLoss"):
        SharedGradient(linear_network(), loss=nn.CrossEntropyLoss)
    whole = SharedGradient(linear_network(), loss=nn.CrossEntropyLoss(reduction="none"))
    own = SharedGradient(linear_network())
    sent = [v.release(draws(3, 0), generator=torch.Generator()).tensors for v in (whole, own)]
    assert all(torch.allclose(sent[0][n], sent[1][n], atol=1e-6) for n in sent[0])


def network_with(outputs: int) -> nn.Module:
    wide = ImageSpace(1, 4, 4, tuple(map(str, range(outputs))))
    return networks.mlp(wide, hidden=(40,), generator=torch.Generator().manual_seed(1))


def test_the_gradient_of_a_padded_network_is_torchs_own():
    model, batch = network_with(20), draws(3, 0)
    nn.functional.cross_entropy(model(batch.x), batch.y).backward()
    victim = SharedGradient(model)
    sent = victim.release(batch, generator=torch.Generator()).tensors
    targets = nn.functional.one_hot(batch.y, CLASSES).float()
    replayed = victim.simulator(batch.x, targets)
    for name, parameter in model.named_parameters():
        assert torch.allclose(sent[name], parameter.grad, atol=1e-6)
        assert torch.allclose(replayed[name], parameter.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("attack", "batch_size"),
    [
        pytest.param(ExactInversion(), 3, marks=pytest.mark.slow),
        (DeepLeakage(iterations=30), 1),
        (InvertingGradients(iterations=60), 1),
        (FeatureInversion(iterations=20), 3),
    ],
    ids=lambda one: str(getattr(one, "name", one)),
)
def test_a_model_with_padding_classes_is_audited(attack, batch_size):
    audit = small_audit([attack], victim=SharedGradient(network_with(20)), batch_size=batch_size)
    report = run(replace(audit, trials=3))
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert all(outcome.label_accuracy == 1 for outcome in report.findings.attacks[0].outcomes)


@pytest.mark.parametrize("outputs", [1, 2])
def test_too_few_outputs_are_a_sentence(outputs):
    model, local = network_with(outputs), LocalTraining(2, 0.1)
    victims = (
        SharedGradient(model),
        SharedGradient(model, mode="eval", private=ClippedNoise(1.0, 1.0)),
        FederatedUpdate(model, local),
    )
    for victim in victims:
        with pytest.raises(VestigeError, match=f"returns {outputs} logits, .* 3 classes"):
            run(replace(small_audit([InvertingGradients(iterations=2)], victim=victim), trials=1))


def test_a_head_is_told_what_it_lacks():
    (training,) = (v for v in valid_objects() if isinstance(v, vestige.victims.HeadTraining))
    with pytest.raises(VestigeError, match="write HeadedModel"):
        ReleasedHead(linear_network(), training)
    with pytest.raises(VestigeError, match="not the class HeadedModel"):
        ReleasedHead(HeadedModel, training)
    with pytest.raises(VestigeError, match="must be an object of DPSGD"):
        dataclasses.replace(training, private=ClippedNoise(1.0, 1.0))
