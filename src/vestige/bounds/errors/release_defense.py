"""What a defence does to a release, in the terms of the bounds on the error."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vestige.choices import check_fields
from vestige.mechanisms import require


@dataclass(frozen=True)
class ReleaseDefense:
    """What is done to a release, in this order; any combination.

    Each record's gradient is cut to ``record_clipping_norm``; records are added up or averaged; the
    whole is cut to ``clipping_norm``; the ``pruned_share`` of its values that are smallest becomes
    zero; if ``quantized``, the rest is rounded; each value is dropped with probability ``dropout``,
    by a mask that the attacker sees; every value left gets Gaussian noise of standard deviation
    ``noise``.

    ``noise`` counts after averaging: DP-SGD of a mean over B records has σC/B. Kept values that are
    multiplied by 1/(1 − p) before the noise are those of noise (1 − p)s. Rounding after the noise
    is not ``quantized``: whatever is done to a noisy release leaves its bounds valid.
    """

    noise: float = 0.0
    dropout: float = 0.0
    clipping_norm: float | None = None
    record_clipping_norm: float | None = None
    pruned_share: float = 0.0
    quantized: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.noise < math.inf, "The noise's standard deviation is finite, not < 0.")
        require(0 <= self.dropout < 1, "A dropout rate lies in [0, 1).")
        require(0 <= self.pruned_share < 1, "The pruned share lies in [0, 1).")
        for norm in (self.clipping_norm, self.record_clipping_norm):
            require(norm is None or 0 < norm < math.inf, "A clipping norm is positive and finite.")
