"""An audit of captured releases whose batches are known: rates for what really left a training.

An ``Audit`` lets a victim release what every trial asks for. Here the releases exist already, in
the order in which a training made them; its owner says which records were behind each, and which
other records might have been. One trial is one release: one of its records, at random and never
one that another trial has audited, is compared with decoys of its class.

Audited records and other records are one pool, class by class (texts: class and band of lengths by
``length_bands``), and decoys are drawn from all of it
but the audited record itself and records that are in the same batch. The verdict is that of a
permutation test over which record of the pool is behind which release (``permutation_tests``).
Limits of rates are those of Clopper and Pearson with the design effect of a finite pool
(``rates.pool_design_effect``). Both ask that records were put behind releases, or among the others,
at random; guesses never see a release, so a guess that hits more often than chance allows shows
that they were not, and the audit is INVALID.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from vestige import attacks as attack_room
from vestige.choices import check_fields
from vestige.content import code_digest, combined_digest, tensors_digest
from vestige.distances import (
    Distance,
    declared_distances,
    distance_label,
    for_space,
    mean_squared_error,
)
from vestige.errors import BadInput
from vestige.interfaces import Attack
from vestige.printable import clean_text
from vestige.records import Records, TextSpace
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.numbers import share
from vestige.reports.parts import Check, CheckOutcome, ThreatDescription
from vestige.simulation.kinds import client_simulator
from vestige.statistics.permutation_tests import PERMUTATIONS, permutation_tests
from vestige.statistics.rates import allowed_rank, decoys_needed
from vestige.streams import stream
from vestige.studies.attack_choice import choice_settings
from vestige.studies.audit.checks import check_distances
from vestige.studies.audit.evidence import nearest_neighbor_distance
from vestige.studies.audit.exhibits import with_exhibits
from vestige.studies.audit.preflight.checks import check_form, check_replay
from vestige.studies.audit.preflight.outputs import check_outputs
from vestige.studies.audit.trial_files import (
    TrialResult,
    attack_findings,
    check_trial,
    trial_of,
    with_trial_times,
)
from vestige.studies.audit.trials import named_with_guesses, pool_key
from vestige.studies.captured.trials import (
    CapturedWork,
    KnownRelease,
    TrialPlan,
    draw_trials,
)
from vestige.studies.declared import Declared
from vestige.studies.defense_words import defense_words
from vestige.studies.expected_time import expected_time
from vestige.studies.report_parts import (
    attack_settings,
    audit_limits,
    check_reads,
    describe_prior,
    describe_space,
    described_distances,
    environment,
    with_table,
)
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, version_checks


@dataclass(frozen=True)
class CapturedAudit(Declared):
    """Attack captured releases and measure what comes back of their known batches.

    ``others`` are records that were in no release and that no attacker holds: decoys are drawn from
    them and from the audited records of other trials. Separate them from the trained ones at random
    (``Records.split``). Every replay is compared with its release first, and no attack starts if
    one differs. A unit of work is one trial, which is one release. Without ``attacks``,
    ``vestige.attacks.recommended`` chooses them for the release of the largest batch.
    ``distance`` is one of ``vestige.distances`` or several, the primary one first: each has a
    permutation test of its own, and limits and the verdict are joint over attacks and distances.
    Left out, texts have two, as in an ``Audit``.
    """

    releases: Sequence[KnownRelease]
    others: Records
    attacks: Sequence[Attack] | None = None
    false_positive_rate: float = 0.01
    confidence: float = 0.95
    distance: Distance | Sequence[Distance] = mean_squared_error
    title: str = "Captured releases of a training"

    kind = "captured audit"

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.others, Records):
            object.__setattr__(self, "distance", for_space(self.distance, self.others.space))
        _check(self)

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title

    @property
    def distances(self) -> tuple[Distance, ...]:
        """The declared distances, the primary one first."""
        return declared_distances(self.distance)

    @property
    def decoy_count(self) -> int:
        """Decoys in every trial."""
        return decoys_needed(self.false_positive_rate)

    @cached_property
    def all_attacks(self) -> dict[str, Attack]:
        """The attacks by name, and the two guesses."""
        return named_with_guesses(self.chosen_attacks)

    @cached_property
    def chosen_attacks(self) -> Sequence[Attack]:
        """The attacks as given, or as recommended for the largest batch."""
        if self.attacks is not None:
            return self.attacks
        largest = max(self.releases, key=lambda one: len(one.secret))
        return attack_room.recommended(largest.public, largest.observation)

    def identity(self) -> str:
        """Digest of releases, batches, other records, prior, attacks and settings."""
        described = {name: attack_settings(attack) for name, attack in self.all_attacks.items()}
        facts = [self.title, self.false_positive_rate, self.confidence, described]
        facts += [distance_label(one) for one in self.distances]
        tensors, marks = {}, []
        for number, one in enumerate(self.releases):
            model = one.public.simulator.model.state_dict()
            tensors |= {f"{number}/model/{n}": t for n, t in model.items()}
            released = one.observation.release.tensors
            tensors |= {f"{number}/release/{n}": t for n, t in released.items()}
            tensors[f"{number}/labels"] = one.secret.y
            marks.append(f"{one.name} {one.observation.hints} {''.join(one.secret.fingerprints())}")
        prior = self.releases[0].public.prior.records
        parts = ["".join(records.fingerprints()) for records in (self.others, prior)]
        return combined_digest(
            self.kind, json.dumps(facts), *marks, *parts, tensors_digest(tensors)
        )

    def code(self) -> dict[str, str]:
        """Digests of the attacks' code, by attack."""
        return {name: code_digest(attack) for name, attack in self.all_attacks.items()}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Draw the trials, and compare every release with the replay of its batch."""
        self._trials(seed)
        return replay_checks(self.releases)

    def units(self) -> list[str]:
        """One unit for each release."""
        return [one.name or f"release {n + 1}" for n, one in enumerate(self.releases)]

    def expected_time(self, seed: int, units: int) -> str:
        """How long so many trials take, if that is long."""
        first = self.releases[0]
        return expected_time(self.chosen_attacks, first.public, first.observation, units)

    def prepare(self, seed: int) -> CapturedWork:
        """Draw the trials; attacks are prepared for each release, whose model may be its own."""
        return CapturedWork(self._trials(seed), self.all_attacks, self.distances, seed)

    def _trials(self, seed: int) -> TrialPlan:
        return draw_trials(self.releases, self.others, self.decoy_count, seed)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored trial is damaged or lacks an attack of this audit."""
        check_trial(result, self.all_attacks)

    def findings(self, results: Sequence[UnitResult], about: Header) -> AuditFindings:
        """What the finished trials found, with permutation tests if they are all."""
        plan = self._trials(about.seed)
        trials = [trial_of(one) for one in results]
        versions = version_checks(results, "trials")
        found = self._findings(plan, trials, about, versions)
        if len(trials) == len(plan.trials):
            attacks = self._tested(plan, trials, found.attacks, about.seed)
            found = found.model_copy(update={"attacks": attacks})
        return with_exhibits(found, trials, self.others.space)

    def _tested(
        self,
        plan: TrialPlan,
        trials: Sequence[TrialResult],
        attacks: Sequence[AttackFindings],
        seed: int,
    ) -> tuple[AttackFindings, ...]:
        """The attacks with a permutation test by every distance, and ranks among disjoint decoys.

        All attacks and distances are tested against the same permutations.
        """
        allowed = allowed_rank(self.false_positive_rate, self.decoy_count)
        drawn = int(torch.randint(2**62, (), generator=stream(seed, "permutations")))
        rows = [
            {
                name: [one.tensors[pool_key(name, place)].numpy() for one in trials]
                for name in self.all_attacks
            }
            for place in range(len(self.distances))
        ]
        primary, *further = (
            permutation_tests(plan.class_pools(one), self.decoy_count, allowed, seed=drawn)
            for one in rows
        )
        disjoint = plan.disjoint_ranks(rows[0], seed)
        return tuple(
            one.model_copy(
                update={
                    "permutation": primary[one.name],
                    "further_permutations": tuple(tests[one.name] for tests in further),
                    "disjoint": disjoint.get(one.name),
                }
            )
            for one in attacks
        )

    def _findings(
        self,
        plan: TrialPlan,
        trials: Sequence[TrialResult],
        about: Header,
        versions: tuple[Check, ...],
    ) -> AuditFindings:
        releases, first = self.releases, self.releases[0]
        sizes = sorted({len(release.secret) for release in releases})
        size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} … {sizes[-1]}"
        noun = first.observation.release.noun
        prior = first.public.prior
        primary, *further = self.distances
        joint = f"{len(self.chosen_attacks)} attacks × {len(self.distances)} distances"
        return AuditFindings(
            title=self.title,
            release=f"a captured {noun}",
            defense=defense_words(releases[0].public.simulator),
            space=describe_space(prior.space),
            threat=_threat(releases, noun),
            seed=about.seed,
            trials_planned=len(plan.trials),
            trials_finished=len(trials),
            batch_size=sizes[-1],
            decoys=self.decoy_count,
            false_positive_rate=self.false_positive_rate,
            confidence=self.confidence,
            distance=distance_label(primary),
            further_distances=described_distances(further),
            nearest_neighbor_distance=nearest_neighbor_distance(self.others, prior, primary),
            smallest_pool=plan.smallest_pool,
            attacks=attack_findings(self.all_attacks, trials),
            preflight=(*about.preflight, *versions),
            failure=about.failure,
            limits=audit_limits(prior.space),
            settings={
                "Release": f"{len(releases)} captured {noun}s",
                "Captured": ", ".join(one.name for one in releases if one.name) or "–",
                "Batch size": size,
                "Others, prior": f"{len(self.others):,}, {len(prior.records):,} records",
                "Pool of a class": f"at least {plan.smallest_pool:,} records",
                "Permutations": f"{PERMUTATIONS:,}",
                **(
                    {
                        "Distance": distance_label(primary),
                        "Further distances": "; ".join(map(distance_label, further)),
                        "Confidence": f"{self.confidence:.0%}, joint over {joint}",
                    }
                    if further
                    else {}
                ),
                "False positive rate": share(self.false_positive_rate),
                "Decoys per trial": str(self.decoy_count),
                "Trials, seed": f"{len(plan.trials):,}, {about.seed}",
                **with_table(choice_settings(self.chosen_attacks), prior.space),
            },
            environment=environment(torch.device("cpu")),
            times=with_trial_times(about.times, trials),
        )


def replay_checks(releases: Sequence[KnownRelease]) -> tuple[Check, ...]:
    """Whether every release fits its model and is what the replay of its batch gives."""
    checks: list[Check] = []
    agreed = 0
    for release in releases:
        simulator = release.public.simulator
        found = check_form(simulator, release.observation.release)
        found += check_outputs(simulator, release.secret)
        replay = check_replay(simulator, release.observation.release, release.secret)
        agreed += replay.outcome is CheckOutcome.PASSED
        found += [] if replay.outcome is CheckOutcome.PASSED else [replay]
        where = f"{release.name}: " if release.name else ""
        checks += [c.model_copy(update={"sentence": where + c.sentence}) for c in found]
    noun = releases[0].observation.release.noun
    if agreed:
        agree = Check.passed(
            f"{agreed} of {len(releases)} captured {noun}s agree with the {noun} "
            "recomputed from their batches, in direction and length.",
        )
        checks.insert(0, agree)
    alike = "its secret's label"
    if isinstance(releases[0].secret.space, TextSpace):
        alike += " and a similar length"
    separate = Check.passed(
        "Batches, other records and prior share no record (by content hash). Every decoy "
        f"is another record or the audited record of another release, and has {alike}. "
        "That chance decided which records are behind which release is the owner's word; guesses "
        "test it.",
    )
    return (*checks, separate)


def _threat(releases: Sequence[KnownRelease], noun: str) -> ThreatDescription:
    first = releases[0]
    told = ["the model", "how clients train"]
    if first.observation.hints.batch_size is not None:
        told.append("how many records are behind each release")
    if first.observation.hints.labels is not None:
        told.append("the labels")
    summed = client_simulator(first.public.simulator).clients
    of = f"the mean over {summed} clients" if summed > 1 else "one client"
    return ThreatDescription(
        attacker="server",
        who="The attacker is the server that collected the captured releases.",
        sees=f"One captured {noun} of {of} at a time.",
        told=f"{', '.join(told).capitalize()}.",
        not_told="The records.",
        prior=describe_prior(first.public.prior),
    )


def _check(audit: CapturedAudit) -> None:
    releases, others, attacks = audit.releases, audit.others, audit.attacks
    if not releases or (attacks is not None and not attacks):
        raise BadInput("An audit of captured releases needs at least one release and one attack.")
    if not 0 < audit.false_positive_rate < 1 or not 0 < audit.confidence < 1:
        raise BadInput("false_positive_rate and confidence lie strictly between 0 and 1.")
    check_distances(audit.distances, others, releases[0].public.prior.records)
    for release in releases:
        check_reads(attacks or (), type(release.observation.release), others.space)
    if attacks and len({clean_text(attack.name) for attack in attacks}) < len(attacks):
        raise BadInput("Two attacks have one name: give each once.")
    prior = releases[0].public.prior.records
    kept, held = set(others.fingerprints()), set(prior.fingerprints())
    trained = {key for release in releases for key in release.secret.fingerprints()}
    if kept & trained or held & trained or kept & held:
        raise BadInput(
            "Batches, other records and prior share records: split one dataset with Records.split."
        )
    for release in releases:
        if release.public.prior.records is not prior:
            raise BadInput("The releases come with different priors: give all the same one.")
        if release.secret.space != others.space or others.space != prior.space:
            raise BadInput("Batches, others and prior describe different spaces: load them as one.")
