"""How far apart records are. Functions: lower is closer, always.

Each takes candidates (k, *shape) and records (n, *shape) and returns (k, n). A distance is part of
the plan of an audit, declared before it runs; several of them share one correction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.printable import clean_text
from vestige.records import Space, TextSpace
from vestige.reports.distance_names import MOST_PIXELS, TOKEN_SETS, shift_name

Distance = Callable[[Tensor, Tensor], Tensor]

WINDOW = 7
"""Side of the SSIM window: the uniform window of Wang et al. 2004 as scikit-image uses it."""

LUMINANCE, CONTRAST = 0.01**2, 0.03**2
"""C₁ and C₂ of Wang et al. 2004, Eq. 13, with K₁ = 0.01, K₂ = 0.03 and values in [0, 1]."""


def mean_squared_error(candidates: Tensor, records: Tensor) -> Tensor:
    """Mean squared error of every candidate to every record (k, n).

    Differences are formed before squaring, row by row of the smaller side: the shortcut through
    inner products would lose exact reconstructions in rounding.
    """
    left, right = candidates.flatten(1).double(), records.flatten(1).double()
    if len(left) > len(right):
        return mean_squared_error(records, candidates).T
    if len(left) == 0:
        return left.new_zeros(0, len(right))
    return torch.stack([(row - right).square().mean(1) for row in left])


def structural_dissimilarity(candidates: Tensor, records: Tensor) -> Tensor:
    """1 − SSIM of every candidate to every record (k, n), images in [0, 1]."""
    return 1 - torch.stack([ssim(row.expand_as(records), records) for row in candidates])


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """SSIM of pairs (n, c, h, w) → (n,), values in [0, 1], uniform window.

    Wang, Bovik, Sheikh and Simoncelli 2004, Eq. 13, averaged over windows around every pixel and
    over channels. Images are reflected at their border, and variances are those of the window
    itself (divided by its size), as torchmetrics has it. The window shrinks to the largest odd side
    that fits into small images.
    """
    side = min(WINDOW, *images.shape[-2:])
    side -= 1 - side % 2
    if images.dim() != 4 or side < 3:
        raise BadInput("SSIM compares images of at least 3 × 3 pixels: use mean_squared_error.")
    first, second = (
        nn.functional.pad(part.clamp(0, 1).double(), (side // 2,) * 4, mode="reflect")
        for part in (images, others)
    )

    def windowed(values: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(values, side, stride=1)

    mean, other = windowed(first), windowed(second)
    variance = (windowed(first.square()) - mean.square()).clamp_min(0)
    others_variance = (windowed(second.square()) - other.square()).clamp_min(0)
    covariance = windowed(first * second) - mean * other
    similarity = (2 * mean * other + LUMINANCE) * (2 * covariance + CONTRAST)
    similarity /= (mean.square() + other.square() + LUMINANCE) * (
        variance + others_variance + CONTRAST
    )
    return similarity.flatten(1).mean(1)


@dataclass(frozen=True)
class ShiftTolerant:
    """Mean squared error at the best shift of up to ``pixels`` in each direction.

    All channels shift together. Only the part where the two images overlap is compared, by its
    mean, so no edge is filled with invented values; an image must be more than twice as large as
    the shift, so that the overlap stays larger than what is cut away.
    """

    pixels: int = 2

    squared_error = True

    def __post_init__(self) -> None:
        whole = isinstance(self.pixels, int) and not isinstance(self.pixels, bool)
        if not whole or not 1 <= self.pixels <= MOST_PIXELS:
            raise BadInput(f"pixels of ShiftTolerant is a whole number in 1 … {MOST_PIXELS}.")

    @property
    def name(self) -> str:
        """What an axis says."""
        return shift_name(self.pixels)

    def __call__(self, candidates: Tensor, records: Tensor) -> Tensor:
        """Distances (k, n)."""
        if candidates.dim() != 4 or min(candidates.shape[-2:]) <= 2 * self.pixels:
            raise BadInput(
                f"Shifts of {self.pixels} need images of more than {2 * self.pixels} pixels a "
                "side: allow fewer pixels, or use mean_squared_error."
            )
        steps = range(-self.pixels, self.pixels + 1)
        found = [
            mean_squared_error(
                _moved(candidates, down, right).contiguous(),
                _moved(records, -down, -right).contiguous(),
            )
            for down, right in product(steps, steps)
        ]
        return torch.stack(found).amin(0)


def _moved(images: Tensor, down: int, right: int) -> Tensor:
    """The part of images (n, c, h, w) that overlaps others after a shift of those."""
    height, width = images.shape[-2:]
    rows = slice(max(0, down), height + min(0, down))
    columns = slice(max(0, right), width + min(0, right))
    return images[..., rows, columns]


@dataclass(frozen=True)
class SignTolerant:
    """Mean squared error to a record or to its negative, whichever is closer.

    Negatives of an image x in [0, 1] are 1 − x and the reflection at its own mean in each channel,
    2·mean − x, which keeps the brightness; of a row of standardised features −x.
    """

    name = "sign-tolerant squared error"
    squared_error = True

    def __call__(self, candidates: Tensor, records: Tensor) -> Tensor:
        """Distances (k, n)."""
        versions = [candidates]
        if candidates.dim() == 4:
            mean = candidates.mean((-2, -1), keepdim=True)
            versions += [1 - candidates, 2 * mean - candidates]
        else:
            versions.append(-candidates)
        return torch.stack([mean_squared_error(one, records) for one in versions]).amin(0)


@dataclass(frozen=True, eq=False)
class EmbeddingDistance:
    """Distance of what a model makes of records: the identity of a face, a diagnosis, a voice.

    ``model`` maps records (n, *shape) to one vector each (n, ...), and does not depend on which
    other records stand in the batch. ``metric`` is the mean squared difference of vectors or
    1 − cosine. ``name`` is what reports call it.
    """

    model: Callable[[Tensor], Tensor]
    name: str
    metric: Literal["euclidean", "cosine"] = "euclidean"

    squared_error = False

    def __post_init__(self) -> None:
        if not callable(self.model):
            raise BadInput("model of EmbeddingDistance maps records to vectors: give a function.")
        if isinstance(self.model, nn.Module) and self.model.training:
            raise BadInput("The model of EmbeddingDistance is in train mode: call eval() first.")
        if not isinstance(self.name, str) or not self.name.strip() or ";" in self.name:
            raise BadInput(
                "name of EmbeddingDistance is what reports call it, without a semicolon: write "
                'name="identity of the face".'
            )
        if self.metric not in ("euclidean", "cosine"):
            raise BadInput("metric of EmbeddingDistance is 'euclidean' or 'cosine'.")

    def __call__(self, candidates: Tensor, records: Tensor) -> Tensor:
        """Distances (k, n)."""
        left, right = self._vectors(candidates), self._vectors(records)
        if self.metric == "cosine":
            left, right = (nn.functional.normalize(part, dim=1) for part in (left, right))
            # Of unit vectors 1 − cosine is half the squared distance, which is exact at zero.
            return mean_squared_error(left, right) * left.shape[1] / 2
        return mean_squared_error(left, right)

    def _vectors(self, records: Tensor) -> Tensor:
        device, kind = torch.device("cpu"), torch.float32
        if isinstance(self.model, nn.Module):
            first = next(self.model.parameters(), None)
            device, kind = (device, kind) if first is None else (first.device, first.dtype)
        with torch.no_grad():
            found = self.model(records.to(device, kind))
        if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != len(records):
            raise BadInput(
                f"The model of the distance {self.name!r} must return one vector for each record, "
                "a tensor (n, dimensions)."
            )
        return found.detach().cpu().flatten(1).double()


def declared_distances(distance: Distance | Sequence[Distance]) -> tuple[Distance, ...]:
    """The distances of a plan, the primary one first; raise BadInput if names are not distinct."""
    several = tuple(distance) if isinstance(distance, Sequence) else (distance,)
    if not several or not all(callable(one) and not isinstance(one, type) for one in several):
        raise BadInput(
            "distance is a function of candidates and records, or a list of them: write "
            "distance=[mean_squared_error, SignTolerant()]."
        )
    names = [distance_label(one) for one in several]
    if len(set(names)) < len(names):
        raise BadInput("Two distances have the same name: declare each once, under its own name.")
    return several


def is_squared_error(distance: Distance) -> bool:
    """Whether a quarter of a distance is half the way: a mean squared error of pixels."""
    return distance is mean_squared_error or bool(getattr(distance, "squared_error", False))


@dataclass(frozen=True)
class TokenDistance:
    """Share of positions at which two texts differ, over the longer of their lengths.

    Records are token numbers that end with ``padding``; two empty texts are equal.
    """

    padding: int = 0

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("padding",))

    def __call__(self, candidates: Tensor, records: Tensor) -> Tensor:
        """Distances (k, n) of texts (k, length) and (n, length)."""
        left, right = candidates.round()[:, None], records.round()[None]
        ours, theirs = self._within(left), self._within(right)
        differing = ((left != right) | (ours != theirs)) & (ours | theirs)
        return differing.sum(2).double() / (ours | theirs).sum(2).clamp_min(1)

    def _within(self, texts: Tensor) -> Tensor:
        """Which places hold a token: all up to the last one that is no padding."""
        return (texts != self.padding).flip(-1).cumsum(-1).flip(-1) > 0


@dataclass(frozen=True)
class TokenSetDistance:
    """Share of the tokens of two texts that only one of them holds, whatever their order.

    The Jaccard distance of their sets of tokens. A reading of the tokens without their order
    (``attacks.EmbeddingReading``) is measured by it; ``padding`` is no token.
    """

    padding: int = 0

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("padding",))

    def __call__(self, candidates: Tensor, records: Tensor) -> Tensor:
        """Distances (k, n) of texts (k, length) and (n, length)."""
        left, right = ([self._tokens(row) for row in part] for part in (candidates, records))
        rows = [
            [len(one ^ two) / max(len(one | two), 1) for two in right]  # two empty texts: 0
            for one in left
        ]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(left), len(right))

    def _tokens(self, text: Tensor) -> set[int]:
        return {int(token) for token in text.round().tolist()} - {self.padding}


token_distance = TokenDistance()
"""The distance of texts that are padded with token 0."""


def for_space(
    distance: Distance | Sequence[Distance], space: Space
) -> Distance | tuple[Distance, ...]:
    """The same distances; of texts, squared errors of token numbers give way to differing tokens.

    Numbers of tokens are names: their differences mean nothing. Left to its default, the distance
    of texts is both that of tokens at their places and that of tokens whatever their order: a name
    is given away by either.
    """
    if distance is mean_squared_error and isinstance(space, TextSpace):
        return (TokenDistance(space.padding), TokenSetDistance(space.padding))
    if isinstance(distance, Sequence):
        return tuple(_of_tokens(one, space) for one in distance)
    return _of_tokens(distance, space)


def _of_tokens(distance: Distance, space: Space) -> Distance:
    if not isinstance(space, TextSpace):
        return distance
    if distance is mean_squared_error:
        return TokenDistance(space.padding)
    if distance is structural_dissimilarity or isinstance(distance, ShiftTolerant | SignTolerant):
        raise BadInput(
            f"Texts have no {distance_label(distance)}, their values are numbers of tokens: use "
            "TokenDistance() or TokenSetDistance()."
        )
    return distance


def distance_label(distance: Distance) -> str:
    """What an axis says about a distance."""
    if isinstance(distance, TokenDistance):
        return "share of differing tokens"
    if isinstance(distance, TokenSetDistance):
        return TOKEN_SETS
    if distance is structural_dissimilarity:
        return "1 − SSIM"
    named = getattr(distance, "name", None)
    if isinstance(named, str):
        return clean_text(named)
    return getattr(distance, "__name__", "distance").replace("_", " ")
