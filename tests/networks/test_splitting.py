"""Trained classifiers, split into a backbone and a head."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.networks import HeadedModel
from vestige.networks.backbone_change import UNCHECKED, compare_backbones


@pytest.fixture(autouse=True)
def weights_of_a_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class Residual(nn.Module):
    """A block of a small residual network with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.norm(self.conv(x))).relu()


class ResNetLike(nn.Module):
    """Ends as torchvision's ResNets do: pooling, flatten as a function, ``fc``."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 6, 3, stride=2), Residual(6)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), head or nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.block(self.stem(x))), 1))


class MobileNetLike(nn.Module):
    """Depthwise convolutions, and ``classifier`` = dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.ReLU6(inplace=True),
            nn.Conv2d(8, 5, 1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.classifier(self.features(x).mean((2, 3)))}


class Functional(nn.Module):
    """Three linear layers with ReLUs that are functions; one logit for each record, squeezed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.one, self.two, self.three = nn.Linear(192, 7), nn.Linear(7, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(self.body(x)).relu()).relu_()).squeeze(1)


class Changed(nn.Module):
    """A residual network, and something after it."""

    def __init__(self, after) -> None:
        super().__init__()
        self.inner, self.after = ResNetLike(), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(x))


class Twice(nn.Module):
    """Calls its layer two times."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(192, 192), nn.Linear(192, 192)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(self.body(x.flatten(1))))


def pictures(count: int = 3, seed: int = 0) -> Tensor:
    return torch.rand((count, 3, 8, 8), generator=torch.Generator().manual_seed(seed))


def logits(model: nn.Module, x: Tensor) -> Tensor:
    output = copy.deepcopy(model).eval()(x)
    output = output["logits"] if isinstance(output, dict) else getattr(output, "logits", output)
    return output.reshape(len(x), -1)


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), *between, nn.Linear(5, 4))


@pytest.mark.parametrize(
    ("build", "layer", "sizes"),
    [
        (ResNetLike, "fc", ()),
        (lambda: ResNetLike(mlp(nn.ReLU(inplace=True), nn.Dropout())), "fc", (5,)),
        (lambda: ResNetLike(mlp(nn.ReLU())), "fc.0", (5,)),
        (lambda: ResNetLike(mlp(nn.ReLU())), "fc.2", ()),
        (MobileNetLike, "classifier", ()),
        (MobileNetLike, "classifier.1", ()),
        (Functional, "one", (7, 5)),
        (Functional, "two", (5,)),
        (lambda: Changed(nn.Identity()), "inner.fc", ()),
    ],
)
def test_backbone_and_head_give_the_models_outputs(build, layer, sizes):
    model = build().eval()
    before = copy.deepcopy(model.state_dict())
    headed = HeadedModel.from_module(model, layer, example=pictures())
    x = pictures(5, seed=1)
    with torch.no_grad():
        assert torch.allclose(headed(x), logits(model, x), atol=1e-6)
        assert torch.allclose(headed.head(headed.features(x)), logits(model, x), atol=1e-6)
    assert headed.hidden_sizes == sizes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert set(headed.head_parameters) == {f"head.{n}" for n, _ in headed.head.named_parameters()}


def test_a_vision_transformer_from_a_configuration():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        num_labels=5,
    )
    model = transformers.ViTForImageClassification(config).eval()
    headed = HeadedModel.from_module(model, "classifier")
    with torch.no_grad():
        for seed in (1, 2):
            x = pictures(4, seed)
            assert torch.allclose(headed(x), logits(model, x), atol=1e-6)
    assert (headed.width, headed.outputs) == (16, 5)
    with pytest.raises(BadInput, match="choose the layer after pooling"):
        HeadedModel.from_module(model, "vit")


def test_a_mobilenet_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.MobileNetV2Config(depth_multiplier=0.1, image_size=32, num_labels=3)
    model = transformers.MobileNetV2ForImageClassification(config)
    headed = HeadedModel.from_module(model, "classifier")
    x = torch.rand((3, 3, 32, 32), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert torch.allclose(headed(x), logits(model, x), atol=1e-6)
    assert any("running statistics" in remark for remark in headed.remarks) == model.training


def test_a_model_of_timm():
    try:
        timm = importlib.import_module("timm")
    except Exception:  # where torchvision does not fit torch, its import fails in any way
        pytest.skip("timm is not installed, or does not import here")
    model = timm.create_model("resnet18", num_classes=4).eval()
    headed = HeadedModel.from_module(model, "fc")
    x = torch.rand((2, 3, 64, 64), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        assert torch.allclose(headed(x), logits(model, x), atol=1e-5)


def test_train_mode_is_left_and_told():
    model = ResNetLike().train()
    headed = HeadedModel.from_module(model, "fc", example=pictures())
    assert model.training
    assert not headed.backbone.training
    assert "running statistics" in headed.remarks[0]
    assert torch.allclose(headed(pictures(4)), logits(model, pictures(4)), atol=1e-6)
    dropped = HeadedModel.from_module(MobileNetLike(), "classifier", example=pictures())
    assert "trained without it" in dropped.remarks[0]


@pytest.mark.parametrize(
    ("build", "layer", "words"),
    [
        (ResNetLike, "classifier", r"no layer 'classifier'.*last linear layers are 'fc'"),
        (ResNetLike, "fc1", "did you mean 'fc'"),
        (ResNetLike, "stem", "Conv2d without a linear layer"),
        (Twice, "fc", "called more than once"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(192, 2)), "0", "pooling"),
        (lambda: ResNetLike(mlp(nn.GELU())), "fc", "GELU .*choose a later layer"),
        (lambda: ResNetLike(mlp()), "fc", "no ReLU between"),
        (lambda: Changed(nn.Softmax(1)), "inner.fc", "Softmax"),
        (lambda: Changed(lambda x: x.softmax(1)), "inner.fc", "probabilities"),
        (lambda: Changed(lambda x: 2 * x), "inner.fc", "more than that before"),
        (lambda: ResNetLike(nn.Linear(6, 4, bias=False)), "fc", "no bias"),
        (ResNetLike, "pool", "AdaptiveAvgPool2d"),
        (
            lambda: ResNetLike(nn.Sequential(*[nn.Linear(6, 6), nn.ReLU()] * 3, nn.Linear(6, 2))),
            "fc",
            "called more than once",
        ),
    ],
)
def test_refusals(build, layer, words):
    with pytest.raises(BadInput, match=words):
        HeadedModel.from_module(build(), layer, example=pictures())


def test_inputs_must_be_known_and_fit():
    with pytest.raises(BadInput, match="give a batch of them as example"):
        HeadedModel.from_module(ResNetLike(), "fc")
    with pytest.raises(BadInput, match="does not take the example"):
        HeadedModel.from_module(ResNetLike(), "fc", example=torch.zeros(2, 5))
    with pytest.raises(BadInput, match="no logits"):
        HeadedModel.from_module(Changed(lambda x: "words"), "inner.fc", example=pictures())


def fine_tuned(step: float, *, head_only: bool = False) -> tuple[nn.Module, nn.Module]:
    """A model, and the same after a step, with a head for other labels."""
    before = ResNetLike().eval()
    after = copy.deepcopy(before)
    after.fc = nn.Linear(6, 3)
    if not head_only:
        with torch.no_grad():
            for parameter in after.block.parameters():
                parameter += step * torch.randn_like(parameter)
    return before, after


def test_a_frozen_backbone_is_told_to_be_the_pretrained_one():
    before, after = fine_tuned(0, head_only=True)
    headed = HeadedModel.from_module(after, "fc", example=pictures(40), pretrained=before)
    assert headed.remarks == ("The released backbone is the pre-trained one.",)


def test_small_changes_are_told_and_large_ones_refused():
    before, after = fine_tuned(1e-3)
    headed = HeadedModel.from_module(after, "fc", example=pictures(40), pretrained=before)
    (remark,) = headed.remarks
    assert "4 of 9 tensors" in remark
    assert "an approximation" in remark
    before, after = fine_tuned(1.0)
    with pytest.raises(BadInput, match="audit the training of the whole network"):
        HeadedModel.from_module(after, "fc", example=pictures(40), pretrained=before)


def test_the_change_of_features_is_a_share_of_their_spread():
    x = torch.randn((500, 6), generator=torch.Generator().manual_seed(1))
    before, after = nn.Linear(6, 6), nn.Linear(6, 6)
    after.load_state_dict(before.state_dict())
    assert compare_backbones(before, after, x).tensors == 0
    with torch.no_grad():
        after.weight *= 1.2
        after.bias *= 1.2
    change = compare_backbones(before, after, x)
    assert (change.tensors, change.of_tensors) == (2, 2)
    assert change.parameters == pytest.approx(0.2, abs=1e-6)
    features = before(x).detach()
    spread = (features - features.mean(0)).square().sum(1).mean()
    expected = 0.2 * float((features.square().sum(1).mean() / spread).sqrt())
    assert change.features == pytest.approx(expected, rel=1e-4)


def test_other_networks_are_not_compared():
    with pytest.raises(BadInput, match="different layers"):
        compare_backbones(nn.Linear(3, 2), nn.Linear(3, 4), torch.zeros(2, 3))


def test_backbones_are_not_compared_on_made_up_inputs():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    model = transformers.ViTForImageClassification(config)
    with pytest.raises(BadInput, match="prior's as example"):
        HeadedModel.from_module(model, "classifier", pretrained=model)


def test_without_a_pretrained_model_a_remark_says_that_nothing_was_checked():
    headed = HeadedModel.from_module(ResNetLike(), "fc", example=pictures())
    assert headed.remarks[-1] == UNCHECKED


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_examples_and_outputs_that_are_not_finite_are_refused(value):
    broken = pictures()
    broken[0, 0, 0, 0] = value
    with pytest.raises(BadInput, match="example holds NaN"):
        HeadedModel.from_module(ResNetLike(), "fc", example=broken)
    model = ResNetLike()
    with torch.no_grad():
        model.fc.weight[0, 0] = value
    with pytest.raises(BadInput, match=r"fc\.weight. holds NaN or infinite"):
        HeadedModel.from_module(model, "fc", example=pictures())


@pytest.mark.parametrize(
    "last",
    [
        nn.Softmax(1),
        nn.LogSoftmax(1),
        nn.Sigmoid(),
        lambda x: x.log_softmax(1),
        lambda x: x.sigmoid(),
    ],
)
def test_probabilities_are_called_so(last):
    with pytest.raises(BadInput, match=r"returns probabilities.*before the softmax"):
        HeadedModel.from_module(Changed(last), "inner.fc", example=pictures())


def test_heads_have_at_most_two_hidden_layers():
    with pytest.raises(BadInput, match="at most 2 hidden layers, these are 3"):
        HeadedModel(nn.Flatten(), 6, 2, (4, 4, 4))
    assert HeadedModel(nn.Flatten(), 6, 2, (4, 3)).hidden_sizes == (4, 3)


class Wrapped(nn.Module):
    """As transformers classifiers do: a base model under a name, and a classifier."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.classifier = base, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.base(x))


@pytest.mark.parametrize("step", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("wrapped", [False, True])
def test_public_models_without_a_head_are_compared_by_their_backbone(step, wrapped):
    whole, after = fine_tuned(step, head_only=step == 0)
    public = copy.deepcopy(whole)
    public.fc = nn.Identity()
    layer = "fc"
    if wrapped:
        after.fc = nn.Identity()
        after, layer = Wrapped(after), "classifier"
        # A part that the released model lacks, such as a pooler, does not count.
        public.pooler = nn.Linear(6, 6)
    if step == 1.0:
        with pytest.raises(BadInput, match="audit the training of the whole network"):
            HeadedModel.from_module(after, layer, example=pictures(40), pretrained=public)
        return
    found = HeadedModel.from_module(after, layer, example=pictures(40), pretrained=public)
    if wrapped:
        said = "4 of 9 tensors" if step else "is the pre-trained one"
        assert said in found.remarks[-1]
    else:
        same = HeadedModel.from_module(after, layer, example=pictures(40), pretrained=whole)
        assert found.remarks == same.remarks


def test_errors_about_the_pretrained_model_name_it():
    with pytest.raises(BadInput, match="The pretrained model cannot be split"):
        HeadedModel.from_module(ResNetLike(), "fc", example=pictures(4), pretrained=MobileNetLike())
    with pytest.raises(BadInput, match=r"pretrained model's backbone .*different layers"):
        compare_backbones(nn.Linear(3, 2), nn.Linear(3, 4), torch.zeros(2, 3))
