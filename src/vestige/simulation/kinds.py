"""Kinds of simulators that have fields in common."""

from __future__ import annotations

from dataclasses import fields

from vestige.errors import BadInput
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.head import HeadSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.simulator import ClientSimulator, Simulator
from vestige.simulation.update import UpdateSimulator

ClippingSimulator = ClientSimulator | NetworkSimulator
"""What may clip each record's gradient and add noise, as DP-SGD does."""

InformedSimulator = NetworkSimulator | ConvexSimulator | GradientSequenceSimulator
"""Training beside known records, the companions."""


def as_update(simulator: GradientSimulator, local: LocalTraining) -> UpdateSimulator:
    """The update of the same clients after local training."""
    shared = {field.name: getattr(simulator, field.name) for field in fields(simulator)}
    return UpdateSimulator(**shared, local=local)


def as_gradient(simulator: UpdateSimulator) -> GradientSimulator:
    """The gradient of the same clients, without local training."""
    shared = {field.name: getattr(simulator, field.name) for field in fields(GradientSimulator)}
    return GradientSimulator(**shared)


def client_simulator(simulator: Simulator) -> ClientSimulator:
    """A simulator of a gradient or an update; others are refused."""
    if not isinstance(simulator, ClientSimulator):
        raise BadInput(
            "Only gradients and updates can be matched with candidates, and this simulator replays "
            f"a {simulator.releases.noun}: choose an attack that reads it."
        )
    return simulator


def head_simulator(simulator: Simulator) -> HeadSimulator:
    """A simulator of a head's training; others are refused."""
    if not isinstance(simulator, HeadSimulator):
        raise BadInput(
            "This attack reads a head that was trained on a frozen backbone: audit a ReleasedHead "
            "against a WeakAdversary."
        )
    return simulator
