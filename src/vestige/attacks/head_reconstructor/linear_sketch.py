"""Linear sketch: what a regression on shadow heads draws, for a generator to improve on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vestige.attacks.head_reconstructor.head_validation import HeldBackHeads
    from vestige.attacks.head_reconstructor.residual_generator import ResidualGenerator

COMPONENTS = 256
"""Principal components of the pictures that are regressed on: a sketch has no finer detail."""

SAMPLE = 2048
"""Pictures that these components are found from."""

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
"""Ridge penalties that are tried, in units of a standardised weight's sum of squares."""

NEAR_ONE = 0.97
"""A sketch stays so far inside [−1, 1] that tanh lets the generator move every pixel."""


class LinearSketch(nn.Module):
    """Ridge regression from standardised weights to the picture of each class.

    A linear head moves along the features of its records, so what it was trained on is nearly a
    linear function of its weights, which a few thousand shadows determine. A class with several
    pictures is sketched by their mean.
    """

    slopes: Tensor
    means: Tensor
    basis: Tensor

    def __init__(self, slopes: Tensor, means: Tensor, basis: Tensor, shape: torch.Size) -> None:
        super().__init__()
        # Not persistent: a regression is computed again where training is resumed.
        self.register_buffer("slopes", slopes, persistent=False)
        self.register_buffer("means", means, persistent=False)
        self.register_buffer("basis", basis, persistent=False)
        self.shape = shape

    @classmethod
    def fitted(
        cls,
        standard: Tensor,
        goals: Tensor,
        images: Tensor,
        held_rows: Tensor,
        validation: HeldBackHeads,
    ) -> LinearSketch:
        """Regress on shadows (s, coordinates) with goals (s, drawings, most) among images.

        The penalty is the one with which held-back heads are drawn best.
        """
        middle = images.flatten(1).mean(0)
        basis = principal_components(images.flatten(1) - middle)
        seen = (images.flatten(1) - middle) @ basis.mT
        present = (goals >= 0).float()[..., None]
        wanted = (seen[goals.clamp_min(0)] * present).sum(2) / present.sum(2)
        codes = wanted - wanted.mean(0)
        means = middle + wanted.mean(0) @ basis
        best: tuple[float, LinearSketch] | None = None
        penalties = tuple(penalty * len(standard) for penalty in PENALTIES)
        for slopes in ridge(standard, codes.flatten(1), penalties):
            slopes = slopes.reshape(-1, *codes.shape[1:]).transpose(0, 1).contiguous()
            sketch = cls(slopes, means, basis, images.shape[1:])
            error = float(validation.true_and_false(sketch.all_of(held_rows))[0].mean())
            if best is None or error < best[0]:
                best = error, sketch
        assert best is not None
        return best[1]

    def all_of(self, standard: Tensor) -> Tensor:
        """Sketches (n, drawings, *shape) of heads, inside [−1, 1]."""
        parts = [self._of(standard, number) for number in range(len(self.means))]
        return torch.stack(parts, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """Sketches (n, *shape) from the inputs of the generator, classes one-hot at the end."""
        coordinates = self.slopes.shape[1]
        if rows.shape[1] == coordinates:
            return self._of(rows, 0)
        images = rows.new_empty((len(rows), *self.shape))
        which = rows[:, coordinates:].argmax(1)
        for number in range(len(self.means)):
            own = which == number
            images[own] = self._of(rows[own, :coordinates], number)
        return images

    def _of(self, standard: Tensor, number: int) -> Tensor:
        images = self.means[number] + standard @ self.slopes[number] @ self.basis
        return images.clamp(-NEAR_ONE, NEAR_ONE).reshape(-1, *self.shape)


class SketchedGenerator(nn.Module):
    """A residual generator that starts from a linear sketch and learns what it lacks.

    Its last layer starts at zero, so that the first drawing is the sketch.
    """

    def __init__(self, sketch: LinearSketch, generator: ResidualGenerator) -> None:
        super().__init__()
        self.sketch, self.generator = sketch, generator
        nn.init.zeros_(generator.last.weight)
        assert generator.last.bias is not None
        nn.init.zeros_(generator.last.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (n, inputs) → pictures (n, channels, height, width) in [−1, 1]."""
        return torch.tanh(torch.atanh(self.sketch(rows)) + self.generator.logits(rows))


def principal_components(centred: Tensor) -> Tensor:
    """Orthonormal directions (k, pixels) of the largest spread, from a sample of the pictures."""
    rows = centred[:: -(-len(centred) // SAMPLE)]
    few = len(rows) < rows.shape[1]
    vectors = torch.linalg.eigh(rows @ rows.mT if few else rows.mT @ rows).eigenvectors
    components = (vectors.mT @ rows if few else vectors.mT)[-COMPONENTS:]
    lengths = components.norm(dim=1, keepdim=True)
    # Fewer pictures than pixels are centred, so one direction at least is empty.
    significant = lengths.flatten() > 1e-3 * lengths.max()
    return components[significant] / lengths[significant]


def ridge(inputs: Tensor, outputs: Tensor, penalties: tuple[float, ...]) -> Iterator[Tensor]:
    """Minimise ‖inputs·B − outputs‖² + penalty·‖B‖², by the smaller of the normal equations.

    A penalty too small for float32 is left out.
    """
    wide = inputs.shape[0] < inputs.shape[1]
    gram = inputs @ inputs.mT if wide else inputs.mT @ inputs
    wanted = outputs if wide else inputs.mT @ outputs
    for penalty in penalties:
        factor, failed = torch.linalg.cholesky_ex(gram + penalty * torch.eye(len(gram)))
        if not int(failed):
            slopes = torch.cholesky_solve(wanted, factor)
            yield inputs.mT @ slopes if wide else slopes
