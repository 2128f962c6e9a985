"""DP-SGD whose gradients are all seen, followed by an adversary who knows all other records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.dp_sgd import PrivateSteps
from vestige.simulation.released_tensors import check_kind, check_tensors
from vestige.simulation.releases import GradientSequenceRelease, Release
from vestige.simulation.simulator import Simulator

AT_ONCE = 256
"""Records whose gradients are held in memory at the same time."""


@dataclass(frozen=True)
class Trace:
    """Records compared with every step of a sequence, in units of the clipping norm C.

    x_t is what is left of step t without the known records, u_ti the clipped gradient of record i
    at the weights of step t: ``products`` (T, n) are ⟨x_t, u_ti⟩, ``squared_norms`` (T, n) are
    ‖u_ti‖², and ``remainders`` (T,) are ‖x_t‖².
    """

    products: Tensor
    squared_norms: Tensor
    remainders: Tensor


@dataclass(frozen=True, kw_only=True)
class GradientSequenceSimulator(Simulator):
    """Steps of DP-SGD on ``companions``, which are known, and one record that is not."""

    companions: Records
    private: PrivateSteps

    releases = GradientSequenceRelease

    def __call__(self, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Refuse: noise and sampling cannot be replayed."""
        raise BadInput(
            "Noise and sampling of DP-SGD cannot be replayed: compare candidates with the release "
            "by GradientSequenceSimulator.trace."
        )

    def check(self, release: Release) -> None:
        """Raise BadInput unless a release holds all steps of this model and their sampling."""
        check_kind(release, GradientSequenceRelease)
        steps = self.private.mechanism.steps
        check_tensors(release.tensors, self.parameters, whole=True, steps=steps)
        self._sampled(release)

    def clipped_sum(self, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        """Sum (P,) of the clipped gradients of records; zero where there are none."""
        parts = [
            self._clipped(parameters, x[start : start + AT_ONCE], targets[start : start + AT_ONCE])
            for start in range(0, max(len(x), 1), AT_ONCE)
        ]
        return torch.stack([part.sum(0) for part in parts]).sum(0)

    def trace(self, release: Release, records: Records) -> Trace:
        """Follow the training along its released gradients; compare records with every step.

        The weights of every step follow from the initial ones and the released sums; the clipped
        gradients of the known records that a step had sampled are subtracted from its sum. What is
        left is noise, and the unknown record's clipped gradient where the step had sampled it.
        """
        self.check(release)
        parameters, like, norm = dict(self.parameters), self.like, self.private.clipping_norm
        x, targets = self.batch(records)
        known_x, known_targets = self.batch(self.companions)
        rows: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for step, chosen in enumerate(self._sampled(release).to(like.device)):
            noisy = {name: release.tensors[name][step].to(like) for name in parameters}
            left = torch.cat([noisy[name].flatten() for name in parameters])
            left = left - self.clipped_sum(parameters, known_x[chosen], known_targets[chosen])
            left = left / norm
            products, squares = [], []
            for start in range(0, len(x), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                units = self._clipped(parameters, x[part], targets[part]) / norm
                products.append(units @ left)
                squares.append(units.square().sum(1))
            for row, value in zip(rows, (torch.cat(products), torch.cat(squares), left @ left)):
                row.append(value.double().cpu())
            parameters = self.private.moved(parameters, noisy, len(self.companions) + 1)
        products, squares, remainders = (torch.stack(row) for row in rows)
        return Trace(products, squares, remainders)

    def _clipped(self, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        return self.private.clipped(self.record_gradients(parameters, x, targets))

    def _sampled(self, release: Release) -> Tensor:
        """Which known records each step sampled."""
        sampled = getattr(release, "known_sampled", None)
        shape = (self.private.mechanism.steps, len(self.companions))
        if sampled is None or sampled.shape != shape or sampled.dtype != torch.bool:
            raise BadInput(
                "The release does not say which known records each step sampled: give "
                f"known_sampled, boolean, with shape {shape}."
            )
        return sampled
