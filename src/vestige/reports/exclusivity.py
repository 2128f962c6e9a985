"""How often batches meet the exclusivity condition: the part of a report that says it."""

from __future__ import annotations

from vestige.reports.document import Document


class ExclusivityRate(Document):
    """Share of random batches of one size that meet the condition, with Clopper–Pearson limits."""

    batch_size: int
    held: int
    batches: int
    lower: float
    upper: float

    @property
    def value(self) -> float:
        """The share itself."""
        return self.held / self.batches


class ExclusivityCurve(Document):
    """How often one network at one moment of its training meets the condition, by batch size.

    ``reads_features`` says that other layers come before the fully connected ones.
    """

    network: str
    step: int | None = None
    reads_features: bool = False
    audited: bool = False
    rates: tuple[ExclusivityRate, ...]


class Exclusivity(Document):
    """The exclusivity condition (Pan et al. 2020) on batches of ``records`` of the secrets.

    Every curve was measured on the same batches; limits hold at ``confidence``, each for itself.
    """

    records: int
    of: int
    confidence: float
    curves: tuple[ExclusivityCurve, ...]
