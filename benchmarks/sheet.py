"""What all benchmarks share: a sheet of figures beside their goals, PSNR, and seeded streams."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

# PSNR of an exact float32 reconstruction is limited by rounding; more than this means nothing.
HIGHEST_PSNR = 150.0


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def decibels(mean_squared_error: float) -> float:
    """PSNR of values with range one."""
    return min(HIGHEST_PSNR, -10 * math.log10(max(mean_squared_error, 1e-30)))


@dataclass
class Sheet:
    """Figures beside their goals, printed as they come."""

    short: list[str] = field(default_factory=list)
    met: int = 0
    unmeasured: list[str] = field(default_factory=list)

    def figure(
        self,
        words: str,
        value: float,
        goal: float | None,
        unit: str,
        *,
        most: bool = False,
        note: str = "",
    ) -> None:
        """Print one figure; a goal is a least value (or the most), None is for information."""
        line = f"{words:<66} {value:8.2f} {unit:<3}"
        tail = f"  ({note})" if note else ""
        if goal is None:
            print(line + tail, flush=True)
            return
        reached = value <= goal if most else value >= goal
        self.met += reached
        if not reached:
            self.short.append(words)
        sign, mark = "≤" if most else "≥", "" if reached else "   SHORT"
        print(f"{line} goal {sign} {goal:g}{mark}{tail}", flush=True)

    def missing(self, words: str, reason: str) -> None:
        """Say that a figure could not be measured; it counts neither as reached nor as short."""
        self.unmeasured.append(words)
        print(f"{words:<66} {reason}", flush=True)

    def summary(self, minutes: float) -> str:
        """How many figures reach their goal, which fall short, and which were not measured."""
        total = self.met + len(self.short)
        said = f"{self.met} of {total} figures reach their goal, {minutes:.1f} minutes of CPU."
        if self.short:
            said += f" Short: {'; '.join(self.short)}."
        if self.unmeasured:
            said += f" Not measured: {'; '.join(self.unmeasured)}."
        return said
