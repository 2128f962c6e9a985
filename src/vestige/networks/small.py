"""The small reference networks that reconstruction papers attack.

Plain modules that map records (n, *shape) to logits (n, classes). Every parameter is drawn from
the given generator (seed 0 if there is none); torch's global random state is not used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vestige.choices import check_whole
from vestige.errors import BadInput
from vestige.records import ImageSpace, Space, TableSpace

Activation = Callable[[], nn.Module]
"""Makes one activation, such as the class ``torch.nn.ReLU`` itself."""


def mlp(
    space: Space,
    hidden: Sequence[int] = (200,),
    *,
    bias: bool = True,
    activation: Activation = nn.ReLU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Fully connected network; ``hidden=()`` is softmax regression.

    The default, with one hidden layer of 200 units, is the MNIST network of Pan et al., "Exploring
    the Security Boundary of Data Reconstruction via Neuron Exclusivity Analysis" (2020); with
    ``bias=False`` it is theirs exactly. ``hidden=(10,), activation=torch.nn.ELU`` is the released
    model of Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries"
    (2022).

    With ``bias``, the first layer's gradient reveals a single record exactly: a row of the weight's
    gradient divided by the bias's.
    """
    if not isinstance(space, (ImageSpace, TableSpace)):
        raise BadInput(f"mlp takes the space of its records, such as records.space, not {space!r}.")
    check_sizes("hidden of mlp", hidden)

    def build() -> nn.Sequential:
        sizes = (math.prod(space.shape), *hidden, _classes(space))
        return nn.Sequential(nn.Flatten(), *_dense(sizes, activation, bias=bias))

    return _initialise(build, _default, generator)


def convnet(
    space: Space, *, width: int = 16, generator: torch.Generator | None = None
) -> nn.Sequential:
    """Small ReLU network of three 3×3 convolutions, strides 1, 2 and 2, and one linear layer.

    Made to be a hard case for a defense: it keeps what an attack needs. There is no pooling, which
    would hide all but one value of each window, and no hidden layer between the convolutions and
    the logits, whose dead units would hide features. Width doubles where the picture shrinks, so
    the head's gradient holds width/4 features for every pixel (four at the default width), more
    than there are values to recover.

    ``width`` is the number of channels after the first convolution.
    """
    picture = _pictures(space, "convnet", width)

    def build() -> nn.Sequential:
        height, across = _halve(picture, times=2)
        return nn.Sequential(
            nn.Conv2d(picture.channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * width * height * across, _classes(space)),
        )

    return _initialise(build, _default, generator)


def lenet(
    space: Space,
    *,
    hidden: Sequence[int] = (),
    activation: Activation = nn.Sigmoid,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """LeNet as attacked by Zhu, Liu and Han, "Deep Leakage from Gradients" (2019).

    Three 5×5 convolutions with 12 channels and strides 2, 2 and 1, sigmoids (the attack needs a
    twice differentiable network), one linear layer; all weights and biases uniform in (−0.5, 0.5),
    as in the authors' code. The linear layer takes whatever size the convolutions leave, so that
    pictures other than 32×32 fit.

    ``hidden`` adds fully connected layers before the logits; the paper has none.
    """
    picture = _pictures(space, "lenet")
    check_sizes("hidden of lenet", hidden)

    def build() -> nn.Sequential:
        height, across = _halve(picture, times=2)
        return nn.Sequential(
            nn.Conv2d(picture.channels, 12, 5, stride=2, padding=2),
            activation(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            activation(),
            nn.Conv2d(12, 12, 5, stride=1, padding=2),
            activation(),
            nn.Flatten(),
            *_dense((12 * height * across, *hidden, _classes(space)), activation),
        )

    return _initialise(build, _half, generator)


def lenet5(
    space: Space,
    *,
    hidden: Sequence[int] = (120, 84),
    pooling: Callable[[int], nn.Module] = nn.MaxPool2d,
    activation: Activation = nn.ReLU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """LeNet-5 of LeCun et al., "Gradient-Based Learning Applied to Document Recognition" (1998).

    Two 5×5 convolutions with 6 and 16 channels, each pooled 2×2, and fully connected layers, with
    the ReLU and the maxima of Pan et al. (2020), whose text says 6×6 for the first. Pictures of
    28×28 are padded, so that 400 features enter the fully connected part.

    Pictures are 12×12 or larger. ``pooling`` makes a layer such as ``torch.nn.AvgPool2d``.
    """
    picture = _pictures(space, "lenet5")
    check_sizes("hidden of lenet5", hidden)
    padding = 0 if min(picture.height, picture.width) >= 32 else 2
    height, across = (
        ((side + 2 * padding - 4) // 2 - 4) // 2 for side in (picture.height, picture.width)
    )
    if min(height, across) < 1:
        raise BadInput(
            f"A lenet5 needs pictures of at least 12×12, not {picture.height}×{picture.width}."
        )

    def build() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(picture.channels, 6, 5, padding=padding),
            activation(),
            pooling(2),
            nn.Conv2d(6, 16, 5),
            activation(),
            pooling(2),
            nn.Flatten(),
            *_dense((16 * height * across, *hidden, _classes(space)), activation),
        )

    return _initialise(build, _default, generator)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut: (n, before, h, w) → (n, after, h/stride, w/stride).

    The shortcut is a 1×1 convolution where the shape changes (option B of He et al. 2016), the
    identity elsewhere.
    """

    def __init__(self, before: int, after: int, *, stride: int, batch_norm: bool) -> None:
        super().__init__()
        changes = stride != 1 or before != after
        self.residual = nn.Sequential(
            _convolution(before, after, 3, stride=stride, batch_norm=batch_norm),
            nn.ReLU(),
            _convolution(after, after, 3, stride=1, batch_norm=batch_norm),
        )
        self.shortcut = (
            _convolution(before, after, 1, stride=stride, batch_norm=batch_norm)
            if changes
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        return torch.relu(self.residual(x) + self.shortcut(x))


def residual_body(
    channels: int, width: int, blocks: int, stages: int, batch_norm: bool
) -> tuple[list[nn.Module], int]:
    """Layers of a residual network up to its pooled features, and how many features there are.

    Every stage after the first halves the picture and doubles the width.
    """
    body: list[nn.Module] = [
        _convolution(channels, width, 3, stride=1, batch_norm=batch_norm),
        nn.ReLU(),
    ]
    before = width
    for stage in range(stages):
        for block in range(blocks):
            stride, after = (2 if stage > 0 and block == 0 else 1), width * 2**stage
            body.append(ResidualBlock(before, after, stride=stride, batch_norm=batch_norm))
            before = after
    return [*body, nn.AdaptiveAvgPool2d(1), nn.Flatten()], before


def resnet(
    space: Space,
    *,
    depth: int = 8,
    width: int = 16,
    batch_norm: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Residual network for small pictures: He et al., "Deep Residual Learning" (2016), section 4.2.

    A convolution, three stages of (depth − 2)/6 blocks with 1, 2 and 4 times the width, an average
    over the picture and a linear layer. The authors' depths are 20 and more with width 16; depth 8
    is the smallest. Convolutions start as in He et al., "Delving Deep into Rectifiers" (2015).

    ``depth`` counts layers with weights on the longest path: 8, 14, 20, … Without ``batch_norm``,
    convolutions have biases.
    """
    picture = _pictures(space, "resnet", width)
    check_whole("depth of resnet", depth)
    if depth < 8 or (depth - 2) % 6:
        raise BadInput(f"A resnet's depth is 8, 14, 20 or another 6·n + 2, not {depth}.")

    def build() -> nn.Sequential:
        body, features = residual_body(picture.channels, width, (depth - 2) // 6, 3, batch_norm)
        return nn.Sequential(*body, nn.Linear(features, _classes(space)))

    return _initialise(build, _he, generator)


def _dense(sizes: Sequence[int], activation: Activation, *, bias: bool = True) -> list[nn.Module]:
    """Linear layers of these sizes with activations between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), activation()]
    return layers[:-1]


def _convolution(
    before: int, after: int, kernel: int, *, stride: int, batch_norm: bool
) -> nn.Module:
    """Convolution that keeps the picture's size, or divides it by the stride; then batch norm."""
    convolution = nn.Conv2d(
        before, after, kernel, stride=stride, padding=kernel // 2, bias=not batch_norm
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(after)) if batch_norm else convolution


def check_sizes(name: str, hidden: Sequence[int]) -> None:
    """Refuse hidden layers without units, and a single number in place of their list."""
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise BadInput(f"The {name} must be a list of sizes such as (200,), not {hidden!r}.")
    for units in hidden:
        check_whole(name, units)
    if any(units < 1 for units in hidden):
        raise BadInput(f"Hidden layers need at least one unit each, not {tuple(hidden)}.")


def _pictures(space: Space, network: str, width: int = 1) -> ImageSpace:
    """Return the space of pictures, or say that the network needs one."""
    if not isinstance(space, ImageSpace):
        raise BadInput(f"The {network} reads pictures and these records are a table: use mlp.")
    check_whole(f"width of {network}", width)
    if width < 1:
        raise BadInput(f"The width of a {network} is at least 1, not {width}.")
    return space


def _classes(space: Space) -> int:
    """Count the logits."""
    if not space.class_names:
        raise BadInput("The records' space names no classes: give it class_names.")
    return len(space.class_names)


def _halve(space: ImageSpace, *, times: int) -> tuple[int, int]:
    """Height and width after padded convolutions with stride 2, which round up."""
    return -(-space.height // 2**times), -(-space.width // 2**times)


Initializer = Callable[[nn.Module, torch.Generator], None]
"""Draws the parameters of one layer that has a weight matrix or filters."""


def _initialise(
    build: Callable[[], nn.Sequential], initialise: Initializer, generator: torch.Generator | None
) -> nn.Sequential:
    """Build a network on the generator's device and draw its parameters in a fixed order.

    Torch's layers draw from the global state as they are made. They are therefore made without
    storage first, where nothing is drawn.
    """
    generator = generator or torch.Generator().manual_seed(0)
    with torch.device("meta"):
        network = build()
    network.to_empty(device=generator.device)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                initialise(module, generator)
            elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.PReLU)):
                module.reset_parameters()
            elif not list(module.children()) and next(module.parameters(), None) is not None:
                raise BadInput(
                    f"No initialisation is known for {type(module).__name__}: use an activation "
                    "without parameters."
                )
    return network


def _default(layer: nn.Module, generator: torch.Generator) -> None:
    """Torch's own initialisation: uniform in ±1/√(inputs of one unit)."""
    weight = layer.get_parameter("weight")
    limit = 1 / math.sqrt(weight[0].numel())
    for parameter in layer.parameters(recurse=False):
        parameter.uniform_(-limit, limit, generator=generator)


def _half(layer: nn.Module, generator: torch.Generator) -> None:
    """Uniform in (−0.5, 0.5), as in the code of Zhu, Liu and Han (2019)."""
    for parameter in layer.parameters(recurse=False):
        parameter.uniform_(-0.5, 0.5, generator=generator)


def _he(layer: nn.Module, generator: torch.Generator) -> None:
    """Convolutions normal with variance 2/inputs and no bias; linear layers as torch does."""
    if isinstance(layer, nn.Linear):
        _default(layer, generator)
        return
    weight = layer.get_parameter("weight")
    weight.normal_(0, math.sqrt(2 / weight[0].numel()), generator=generator)
    for name, parameter in layer.named_parameters(recurse=False):
        if name == "bias":
            parameter.zero_()
