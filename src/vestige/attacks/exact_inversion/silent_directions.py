"""Directions in the column space of a gradient that silence many neurons."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vestige.attacks.exact_inversion.search_budget import ANSWER_TRIES, current_budget


class Directions:
    """Distinct directions q for which L·q has more zeros than chance allows, sparsest first.

    left L (n, b) carries noise of unit variance in each entry (``noise.factored``), so that L·q
    with ‖q‖ = 1 has unit noise where it is zero. outgoing W̃ (n, k), in the same units, spans what
    the layer above can send back to each neuron.
    """

    PROBES = 160
    """Rows on which a direction is first tried, at most."""

    QUIET, LOUD = 8.0, 200.0
    """Noise units below which an entry of L·q counts as zero. The noise of a row is known only to
    within a factor, so the limit is drawn as high as a column's own size allows."""

    SMALL = 1e-3
    """Entries below this share of the typical one may be zero; a sharper look follows."""

    SENT = 0.02
    """Share of a direction's active entries that need not be W̃·γ for some γ. A mixture of two
    records, silent where both are and in a neuron where they happen to cancel, misses by .1 to 1;
    zeros alone do not tell it from a record."""

    SENT_AT_FIRST = 0.1
    """The same before a direction is sharpened."""

    def __init__(self, left: np.ndarray, outgoing: np.ndarray) -> None:
        self.left = left
        self.outgoing = outgoing
        self.budget = current_budget()
        # Unit rows: sets of rows are inverted, and very different sizes would spoil that.
        size = np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-300)
        self.unit = torch.from_numpy(left / size)
        # Orthonormal columns, so that normal equations are accurate enough for a first look.
        self._sender = torch.from_numpy(np.linalg.qr(outgoing / size)[0])
        self.kept: list[np.ndarray] = []
        self.zeros: list[int] = []
        self._independent: np.ndarray | None = None

    @classmethod
    def limit(cls, reached: np.ndarray) -> float:
        """Size below which entries of one column |L·q| (n,) count as zero."""
        return float(np.clip(1e-4 * np.sqrt((reached**2).mean()), cls.QUIET, cls.LOUD))

    def promising(self, directions: Tensor, rows: Tensor) -> np.ndarray:
        """Directions (k, b) that on some rows are sparse, and elsewhere what a record can cause."""
        reached = directions @ self.unit[rows].T
        typical = reached.square().mean(1, keepdim=True).sqrt()
        active = reached.abs() >= self.SMALL * typical
        # b − 1 zeros come with every set of rows; a record has at least one more.
        n, b = self.left.shape
        sparse = (~active).sum(1) >= b * len(rows) / n
        chosen = torch.nonzero(sparse & torch.isfinite(typical.flatten())).flatten()
        directions, active = directions[chosen], active[chosen].double()
        reached, sender = reached[chosen] * active, self._sender[rows]
        k = sender.shape[1]
        # Least squares on each direction's own active rows, all at once: the Gram matrices are a
        # product of the masks and the outer products of the rows.
        gram = (active @ (sender[:, :, None] * sender[:, None]).flatten(1)).reshape(-1, k, k)
        gram = gram + 1e-9 * torch.eye(k, dtype=gram.dtype)
        right = reached @ sender
        fit, failed = torch.linalg.solve_ex(gram, right)
        total = reached.square().sum(1)
        missed = total - (fit * right).sum(1)
        open_ = (missed <= self.SENT_AT_FIRST**2 * total) | (active.sum(1) < k + 3) | (failed != 0)
        return directions[open_].numpy()

    def add(self, directions: np.ndarray) -> None:
        """Sharpen directions (k, b) and keep those that are new and truly sparse."""
        for direction in directions:
            if self.budget is not None and not self.budget.spend():
                return
            sharp = self._sharpened(direction)
            if sharp is None:
                continue
            q, zeros = sharp
            if any(abs(float(q @ other)) > 1 - 1e-9 for other in self.kept):
                continue
            place = sum(z >= zeros for z in self.zeros)
            if self.budget is not None:
                self.budget.spend(ANSWER_TRIES)
            self.kept.insert(place, q)
            self.zeros.insert(place, zeros)
            self._independent = None

    def independent(self) -> np.ndarray:
        """Linearly independent directions (k, b), chosen greedily from the sparsest on."""
        if self._independent is None:
            chosen: list[np.ndarray] = []
            columns: list[np.ndarray] = []
            for q in self.kept:
                column = self.left @ q
                column = column / np.linalg.norm(column)
                if np.linalg.matrix_rank(np.array([*columns, column]), tol=1e-5) > len(columns):
                    chosen.append(q)
                    columns.append(column)
            self._independent = np.array(chosen).reshape(len(chosen), self.left.shape[1])
        return self._independent

    def silenced(self, direction: np.ndarray) -> np.ndarray:
        """Rows (n,) that a direction silences."""
        reached = np.abs(self.left @ direction)
        return reached < self.limit(reached)

    def silent_share(self) -> np.ndarray:
        """Share of the independent directions that silence each row (n,)."""
        return np.mean([self.silenced(q) for q in self.independent()], axis=0)

    def _sharpened(self, direction: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Fit a direction to all the rows it silences; None if that is no single direction."""
        b = self.left.shape[1]
        q = direction / np.linalg.norm(direction)
        if b == 1:
            return q, 0
        before = None
        for _ in range(6):
            reached = np.abs(self.left @ q)
            limits = [self.limit(reached)]
            if before is None:
                # A set of rows that is nearly dependent amplifies noise; the least limit that finds
                # zeros lets no small but active neuron in.
                size = float(np.sqrt((reached**2).mean()))
                limits += [share * size for share in (1e-9, 1e-6, 1e-4, self.SMALL)]
            silent = next(
                (s for s in (reached < limit for limit in limits) if s.sum() >= b),
                np.zeros(len(reached), bool),
            )
            if silent.sum() < b:
                return None
            if before is not None and (silent == before).all():
                break
            _, values, turned = np.linalg.svd(self.left[silent], full_matrices=False)
            if values[b - 2] < self.QUIET * np.sqrt(silent.sum()):
                return None
            q, before = turned[-1], silent
        silent = self.silenced(q)
        if silent.sum() < b or not self._sent(q, ~silent):
            return None
        return q, int(silent.sum())

    def _sent(self, q: np.ndarray, active: np.ndarray) -> bool:
        """Whether the active entries of L·q can come from one record's signal in the layer above.

        Not a part of SPEAR, whose greedy choice has to sort mixtures out.
        """
        entries, sent = self.left[active] @ q, self.outgoing[active]
        if len(entries) < sent.shape[1] + 3:
            return True
        fit = np.linalg.lstsq(sent, entries, rcond=None)[0]
        missed = float(np.linalg.norm(entries - sent @ fit))
        return missed <= max(self.SENT * float(np.linalg.norm(entries)), 3 * np.sqrt(len(entries)))
