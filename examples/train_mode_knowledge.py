"""Where a server has batch-norm statistics from, for examples/train_mode_study.py.

Both hand statistics to gradient inversion as the running averages that they lead to, which is the
form in which it reads them off a client's buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vestige import Prior
from vestige.attacks import InvertingGradients
from vestige.attacks.gradient_matching.batch_norm import (
    batch_statistics,
    proxy_statistics,
    released_averages,
)
from vestige.interfaces import (
    Briefing,
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    Run,
    Victim,
)
from vestige.simulation.gradient import GradientSimulator
from vestige.threats import HonestServer


@dataclass(frozen=True)
class ProxyStatistics:
    """Gradient inversion that estimates the batch's statistics from its prior."""

    attack: InvertingGradients

    name = "Inverting Gradients, proxy statistics"
    summary = "matches the gradient and the statistics of the attacker's own records"
    needs = "the model, the batch size and records of the same kind"
    cites = "Huang et al. 2021, Evaluating Gradient Inversion Attacks, Assumption 1"
    reads = (GradientRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Return the reconstructor; it draws proxy batches for every release."""
        reconstruct = self.attack.prepare(public, generator=generator)

        def with_proxies(observation: Observation, generator: torch.Generator) -> Reconstruction:
            labels = observation.hints.labels
            assert labels is not None
            known = proxy_statistics(public.simulator, public.prior, labels, generator=generator)
            buffers = released_averages(public.simulator, known)
            release = replace(observation.release, buffers=buffers)
            return reconstruct(replace(observation, release=release), generator)

        return with_proxies


@dataclass(frozen=True)
class StatisticsServer:
    """An honest server that is told the statistics of the batch, in the mode of the client.

    Yin et al. 2021, Eq. 8, assume so much. It is told them as the running averages they lead to.
    """

    server: HonestServer
    simulator: GradientSimulator

    def public(self, victim: Victim, prior: Prior) -> Public:
        """Return what the server knows before any release."""
        return self.server.public(victim, prior)

    def observe(self, run: Run) -> Observation:
        """Return what an honest server sees, and the statistics."""
        seen = self.server.observe(run)
        known = batch_statistics(self.simulator, *self.simulator.batch(run.secret))
        buffers = {n: b.detach() for n, b in released_averages(self.simulator, known).items()}
        return replace(seen, release=replace(seen.release, buffers=buffers))

    def briefing(self, victim: Victim, batch_size: int) -> Briefing:
        """Say in words who sees what."""
        said = self.server.briefing(victim, batch_size)
        return replace(said, told=f"{said.told}; the batch-norm statistics of the batch")
