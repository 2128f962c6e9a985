"""Classifiers whose tail looks like a head on the example and is none, and those without a copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from vestige.errors import BadInput
from vestige.networks import HeadedModel
from vestige.networks.backbone_change import ROUNDING, SMALL, compare_backbones

EXAMPLE = torch.rand((6, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def weights_of_a_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Model(nn.Module):
    """Eight inputs, 16 ReLUs, and a tail."""

    fc: Any
    body: Any

    def __init__(
        self,
        tail: Callable[[Model, Tensor], Tensor],
        fc: nn.Module | None = None,
        body: nn.Module | None = None,
        bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.body = body or nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.fc, self.last = fc or nn.Linear(16, 5), nn.Linear(5, 3)
        self.tail = tail
        if bias:
            with torch.no_grad():
                self.fc.bias += bias

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self, self.body(x))


def plain(model: Model, features: Tensor) -> Tensor:
    return model.fc(features)


class Cosine(nn.Linear):
    """The layer of cosine classifiers."""

    def forward(self, input: Tensor) -> Tensor:
        return 10 * F.linear(F.normalize(input), F.normalize(self.weight)) + self.bias


class LowRank(nn.Linear):
    """A layer with an adapter of rank 2."""

    def __init__(self) -> None:
        super().__init__(16, 5)
        self.a, self.b = nn.Parameter(torch.randn(16, 2)), nn.Parameter(torch.randn(2, 5))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input @ self.a @ self.b


def hooked(*, before: bool) -> nn.Linear:
    layer: Any = nn.Linear(16, 5)
    if before:
        layer.register_forward_pre_hook(lambda _, args: (2.0 * args[0],))
    else:
        layer.register_forward_hook(lambda _, args, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    "build",
    [
        lambda: Model(lambda m, f: m.fc(f).clamp(-5, 5)),
        lambda: Model(lambda m, f: m.fc(f).clamp(max=100)),
        lambda: Model(lambda m, f: 100 * (m.fc(f) / 100).tanh()),
        lambda: Model(lambda m, f: m.fc(f).relu(), bias=9),
        lambda: Model(lambda m, f: m.last(m.fc(f)), bias=9),
        lambda: Model(lambda m, f: m.last(F.leaky_relu(m.fc(f))), bias=9),
        lambda: Model(lambda m, f: m.last(F.gelu(m.fc(f))), bias=12),
        lambda: Model(lambda m, f: m.last(F.relu6(m.fc(f)))),
        lambda: Model(lambda m, f: m.last(F.softplus(m.fc(f), 10)), bias=9),
        lambda: Model(plain, Cosine(16, 5)),
        lambda: Model(plain, LowRank()),
        lambda: Model(plain, hooked(before=True)),
        lambda: Model(plain, hooked(before=False)),
    ],
)
def test_tails_that_only_look_like_heads_are_refused(build):
    with pytest.raises(BadInput, match=r"something else than linear|do not give the model's"):
        HeadedModel.from_module(build(), "fc", example=EXAMPLE)


def test_hooks_that_only_watch_and_adapters_of_zero_are_no_reason():
    seen = []
    watched = Model(plain)
    watched.fc.register_forward_hook(lambda *args: seen.append(1))
    idle = Model(plain, LowRank())
    with torch.no_grad():
        idle.fc.b.zero_()
    for model in (watched, idle, Model(lambda m, f: m.last(m.fc(f).relu()))):
        headed = HeadedModel.from_module(model, "fc", example=EXAMPLE)
        x = 20 * torch.randn((50, 8), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            assert torch.allclose(headed(x), model(x), atol=1e-4)
        assert all(type(m) is nn.Linear for m in headed.head.modules() if hasattr(m, "weight"))


def test_a_layer_under_two_names():
    model = Model(lambda m, f: m.get_submodule("alias")(f))
    model.alias = model.fc
    headed = HeadedModel.from_module(model, "fc", example=EXAMPLE)
    with torch.no_grad():
        assert torch.allclose(headed(EXAMPLE), model(EXAMPLE))


def pruned() -> nn.Linear:
    layer = nn.Linear(16, 5)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def used(model: Model) -> Model:
    model(EXAMPLE)  # computes the weights
    return model


def tied() -> Model:
    model = Model(plain, nn.Linear(8, 8), nn.Linear(8, 8))
    model.body.weight = model.fc.weight
    return model


def broken() -> Model:
    model = Model(plain)
    with torch.no_grad():
        model.fc.weight.fill_(float("nan"))
    return model


def of_the_batch(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-5)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Model(plain, nn.utils.weight_norm(nn.Linear(16, 5))), "remove_weight_norm"),
        (lambda: used(Model(plain, nn.utils.spectral_norm(nn.Linear(16, 5)))), "before every pass"),
        (lambda: Model(plain, pruned()), "prune.remove"),
        (
            lambda: Model(plain, parametrizations.weight_norm(nn.Linear(16, 5))),
            "remove_parametrizations",
        ),
        (lambda: Model(plain, nn.LazyLinear(5)), "run the model once"),
        (lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 5))), "torch.jit"),
        (lambda: torch.jit.trace(nn.Sequential(nn.Linear(8, 5)), EXAMPLE), "torch.jit"),
        (
            lambda: Model(lambda m, f: m.fc(f.half()).float(), nn.Linear(16, 5).half()),
            "float16, float32",
        ),
        (
            lambda: Model(lambda m, f: m.fc(f.bfloat16()).float(), nn.Linear(16, 5).bfloat16()),
            "bfloat16, float32",
        ),
        (
            lambda: Model(
                plain,
                body=nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, track_running_stats=False)),
            ),
            "track_running_stats=True",
        ),
        (lambda: Model(lambda m, f: m.fc(of_the_batch(f))), "others of its batch"),
        (broken, "'fc.weight' holds NaN"),
        (tied, "'body' uses weights of the head too"),
        (lambda: Model(lambda m, f: m.fc(f + m.fc.weight.mean())), "elsewhere too"),
    ],
)
def test_models_without_a_copy_or_a_head_of_their_own(build, words):
    model = build()
    layer = "0" if isinstance(model, torch.jit.ScriptModule) else "fc"
    with pytest.raises(BadInput, match=words) as refused:
        HeadedModel.from_module(model, layer, example=EXAMPLE)
    assert "\n" not in str(refused.value)


class Scaled(nn.Module):
    """A layer, and a constant that no state_dict holds."""

    def __init__(self, factor: float, after: nn.Module) -> None:
        super().__init__()
        self.factor, self.layer, self.after = factor, nn.Linear(8, 16), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.factor * self.layer(x))


def changed(factor: float = 1.0, after: nn.Module | None = None) -> tuple[Model, Model]:
    before = Model(plain, body=Scaled(1.0, nn.ReLU()))
    released = Model(plain, body=Scaled(factor, after or nn.ReLU()))
    released.load_state_dict(before.state_dict())
    return before, released


@pytest.mark.parametrize(("factor", "after"), [(8.0, None), (1.0, nn.Tanh())])
def test_features_decide_where_no_tensor_differs(factor, after):
    before, released = changed(factor, after)
    change = compare_backbones(before.body, released.body, EXAMPLE)
    assert change.tensors == 0
    assert change.features > SMALL
    with pytest.raises(BadInput, match=r"no tensor of its state_dict differs.*whole network"):
        HeadedModel.from_module(released, "fc", example=EXAMPLE, pretrained=before)


def test_small_changes_without_a_tensor_are_told():
    before, released = changed(1.001)
    headed = HeadedModel.from_module(released, "fc", example=EXAMPLE, pretrained=before)
    assert "no tensor of its state_dict differs" in headed.remarks[-1]
    assert "an approximation" in headed.remarks[-1]
    change = compare_backbones(before.body, copy.deepcopy(before.body), EXAMPLE)
    assert change.features <= ROUNDING
    assert change.sentence == "The released backbone is the pre-trained one."


def test_backbones_whose_features_are_no_numbers_are_not_compared():
    before, released = changed(float("inf"))
    with pytest.raises(BadInput, match="NaN or infinite"):
        compare_backbones(before.body, released.body, EXAMPLE)
