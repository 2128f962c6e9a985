"""The audit: from a victim to ranks of secrets among decoys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vestige.bounds.description import in_words
from vestige.bounds.hits import bounds_on_hits
from vestige.content import code_digest
from vestige.distances import (
    Distance,
    declared_distances,
    distance_label,
    for_space,
    mean_squared_error,
)
from vestige.errors import BadInput
from vestige.interfaces import (
    Attack,
    GradientRelease,
    GradientSequenceRelease,
    ModelRelease,
    Release,
    StatesMechanism,
    ThreatModel,
    UpdateRelease,
    Victim,
)
from vestige.mechanisms import Mechanism, NonPrivate, has_guarantee
from vestige.records import Prior, Records
from vestige.reports.audit import AuditFindings, Claim
from vestige.reports.exclusivity import Exclusivity
from vestige.reports.numbers import share
from vestige.reports.parts import Check
from vestige.simulation.kinds import InformedSimulator
from vestige.statistics.rates import decoys_needed
from vestige.studies.attack_choice import choice_settings, chosen_for_audit, simulated_trial
from vestige.studies.audit.checks import check_audit, fingerprint, preflight_checks
from vestige.studies.audit.evidence import nearest_neighbor_distance
from vestige.studies.audit.exhibits import with_exhibits
from vestige.studies.audit.trial_files import (
    TrialResult,
    attack_findings,
    check_trial,
    trial_of,
    with_trial_times,
)
from vestige.studies.audit.trials import TrialWork, named_with_guesses, prepare_attacks
from vestige.studies.declared import Declared
from vestige.studies.defense_words import defense_words
from vestige.studies.diagnostics.exclusivity import Stage, audited_exclusivity
from vestige.studies.expected_time import expected_time
from vestige.studies.report_parts import (
    audit_limits,
    describe_prior,
    describe_space,
    describe_threat,
    described_distances,
    environment,
    told_facts,
    with_table,
)
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, version_checks
from vestige.threats import HonestServer

_log = logging.getLogger("vestige")


@dataclass(frozen=True)
class Audit(Declared):
    """What is audited, against whom, with which attacks.

    ``secrets`` is the pool that every trial draws its secret and its decoys from; ``prior`` is what
    the attacker holds. Without ``attacks``, ``vestige.attacks.recommended`` chooses them from what
    the threat model lets the attacker know, and the settings say why. Two guesses (a prior draw and
    a class mean) join the attacks: every attack is reported against them. ``decoys`` per trial
    default to the fewest that the false positive rate needs. ``mechanism`` is what the release is
    said to be, by default what the victim says; its bound is held against the rates.
    More ``trials`` in the same run folder are added to those that are there; limits then hold at
    all numbers of trials at once. The rank of a secret by distance to the reconstruction decides
    the verdict; ranks by an attack's own likelihood, where it has one, count for the ε shown.
    ``distance`` is one of ``vestige.distances`` or several, the primary one first: declared before
    anything is measured, with limits and a verdict that are joint over them. Left out, the
    distances of texts are the share of differing tokens and that of tokens not in common, which
    knows no order.
    ``exclusivity_stages`` are other widths or checkpoints of the network, whose batches are held
    against the exclusivity condition beside those of the audited one.
    """

    victim: Victim
    secrets: Records
    prior: Prior
    attacks: Sequence[Attack] | None = None
    threat: ThreatModel = field(default_factory=HonestServer)
    batch_size: int = 1
    title: str = ""
    distance: Distance | Sequence[Distance] = mean_squared_error
    false_positive_rate: float = 0.01
    decoys: int | None = None
    confidence: float = 0.95
    trials: int = 40
    claim: Claim | None = None
    mechanism: Mechanism | None = None
    exclusivity_stages: Sequence[Stage] = ()

    kind = "audit"

    def __post_init__(self) -> None:
        if isinstance(self.secrets, Records):
            object.__setattr__(self, "distance", for_space(self.distance, self.secrets.space))
        check_audit(self)

    @property
    def heading(self) -> str:
        """The title, or what is audited."""
        return self.title or f"Audit of {release_words(self.victim.releases)}"

    @property
    def distances(self) -> tuple[Distance, ...]:
        """The declared distances, the primary one first."""
        return declared_distances(self.distance)

    @property
    def decoy_count(self) -> int:
        """Decoys in every trial."""
        return decoys_needed(self.false_positive_rate) if self.decoys is None else self.decoys

    @property
    def stated_mechanism(self) -> Mechanism:
        """What the release is said to be."""
        if self.mechanism is not None:
            return self.mechanism
        if isinstance(self.victim, StatesMechanism):
            return self.victim.mechanism
        return NonPrivate("the victim states no mechanism")

    @cached_property
    def all_attacks(self) -> dict[str, Attack]:
        """The attacks by name as documents hold it, and the two guesses; a repeat is numbered."""
        return named_with_guesses(self.chosen_attacks)

    @cached_property
    def chosen_attacks(self) -> Sequence[Attack]:
        """The attacks as given, or as recommended."""
        return chosen_for_audit(self) if self.attacks is None else self.attacks

    def settings(self) -> dict[str, str]:
        """Everything a reader needs to repeat the audit, but for trials and seed."""
        told = told_facts(self.threat, self.victim, self.batch_size)
        attacks = self.chosen_attacks
        stated = self.stated_mechanism
        primary, *further = (distance_label(one) for one in self.distances)
        joint = [f"{len(attacks)} attacks"] if len(attacks) > 1 else []
        joint += [f"{1 + len(further)} distances"] if further else []
        return {
            **with_table(self.victim.describe(), self.secrets.space),
            **({"Stated mechanism": in_words(stated)} if has_guarantee(stated) else {}),
            "Threat model": type(self.threat).__name__ + (f", told: {told}" if told else ""),
            "Batch size": str(self.batch_size),
            "Secrets, prior": f"{len(self.secrets):,}, {len(self.prior.records):,} records",
            "Distance": primary,
            **({"Further distances": "; ".join(further)} if further else {}),
            "False positive rate": share(self.false_positive_rate),
            "Decoys per trial": str(self.decoy_count),
            "Confidence": f"{self.confidence:.0%}, joint over {' × '.join(joint)}"
            if joint
            else f"{self.confidence:.0%}",
            **choice_settings(attacks),
        }

    @property
    def size(self) -> int:
        """How many trials; more can be added later."""
        return self.trials

    def resized(self, size: int) -> Audit:
        """The same audit with another number of trials."""
        return replace(self, trials=size)

    def identity(self) -> str:
        """Digest of everything that decides what a trial finds, but for the number of trials."""
        return fingerprint(self)

    def code(self) -> dict[str, str]:
        """Digests of the attacks' code, by attack."""
        return {name: code_digest(attack) for name, attack in self.all_attacks.items()}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Checks that explain why gradients would not invert, before any attack runs."""
        self._exclusivity(seed)  # stages that do not fit are refused before anything is written
        return preflight_checks(self, seed)

    @cached_property
    def _known_exclusivity(self) -> dict[int, Exclusivity | None]:
        return {}

    def _exclusivity(self, seed: int) -> Exclusivity | None:
        if seed not in self._known_exclusivity:
            self._known_exclusivity[seed] = audited_exclusivity(
                self.victim.simulator,
                self.exclusivity_stages,
                self.secrets,
                batch_size=self.batch_size,
                seed=seed,
                confidence=self.confidence,
            )
        return self._known_exclusivity[seed]

    def units(self) -> list[str]:
        """One unit for each trial; every trial audits another secret."""
        if self.trials > len(self.secrets):
            raise BadInput(
                f"Every trial audits another secret: ask for 1 … {len(self.secrets):,} trials, or "
                "give more secrets."
            )
        return [f"trial {number + 1}" for number in range(self.trials)]

    def expected_time(self, seed: int, units: int) -> str:
        """How long so many trials take, if that is long; trained models are not timed."""
        public = self.threat.public(self.victim, self.prior)
        seen = simulated_trial(self, public)
        if seen is None:
            return ""
        return expected_time(self.chosen_attacks, public, seen, units)

    def prepare(self, seed: int) -> TrialWork:
        """Let every attack train what it needs."""
        public = self.threat.public(self.victim, self.prior)
        return TrialWork(self, prepare_attacks(self.all_attacks, public, seed), seed)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored trial is damaged or lacks an attack of this audit."""
        check_trial(result, self.all_attacks)

    def findings(self, results: Sequence[UnitResult], about: Header) -> AuditFindings:
        """What the finished trials found, with those that a reader looks at."""
        trials = [trial_of(one) for one in results]
        found = _findings(self, trials, about, version_checks(results, "trials"))
        return with_exhibits(found, trials, self.secrets.space)


def _findings(
    audit: Audit, results: Sequence[TrialResult], about: Header, versions: tuple[Check, ...]
) -> AuditFindings:
    primary, *further = audit.distances
    return AuditFindings(
        **plan_facts(audit),
        title=audit.heading,
        seed=about.seed,
        trials_planned=audit.trials,
        trials_finished=len(results),
        earlier_trials=about.earlier_sizes,
        further_distances=described_distances(further),
        nearest_neighbor_distance=nearest_neighbor_distance(audit.secrets, audit.prior, primary),
        claim=audit.claim,
        attacks=attack_findings(audit.all_attacks, results),
        preflight=(*about.preflight, *versions),
        exclusivity=audit._exclusivity(about.seed),
        failure=about.failure,
        limits=audit_limits(
            audit.prior.space, informed=isinstance(audit.victim.simulator, InformedSimulator)
        ),
        settings={**audit.settings(), "Trials, seed": _trials_in_words(audit, about)},
        times=with_trial_times(about.times, results),
    )


def plan_facts(audit: Audit) -> dict[str, Any]:
    """What findings say of an audit's plan, in an audit and in studies that repeat its releases."""
    device = next(iter(audit.victim.simulator.model.parameters())).device
    briefing = audit.threat.briefing(audit.victim, audit.batch_size)
    chance = (audit.false_positive_rate, audit.decoy_count)
    return {
        "release": release_words(audit.victim.releases),
        "defense": defense_words(audit.victim.simulator),
        "space": describe_space(audit.prior.space),
        "threat": describe_threat(briefing, describe_prior(audit.prior)),
        "batch_size": audit.batch_size,
        "decoys": audit.decoy_count,
        "false_positive_rate": audit.false_positive_rate,
        "confidence": audit.confidence,
        "distance": distance_label(audit.distances[0]),
        "bounds": bounds_on_hits(audit.stated_mechanism, *chance),
        "environment": environment(device),
    }


def _trials_in_words(audit: Audit, about: Header) -> str:
    """How many trials with which seed, and from how many they were extended."""
    earlier = ", ".join(f"{size:,}" for size in about.earlier_sizes)
    extended = f" extended from {earlier}," if earlier else ""
    return f"{audit.trials:,},{extended} {about.seed}"


def release_words(kind: type[Release]) -> str:
    """What is released, as a sentence names it."""
    return {
        GradientRelease: "a shared gradient",
        UpdateRelease: "a federated update",
        ModelRelease: "a trained model",
        GradientSequenceRelease: "the gradients of DP-SGD",
    }[kind]
