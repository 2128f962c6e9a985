"""The risk of single records: which ones come back, however often they are released."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

from pydantic import ValidationError

from vestige.choices import check_fields
from vestige.content import code_digest, combined_digest
from vestige.errors import BadInput, brief
from vestige.interfaces import Attack, is_guess
from vestige.reports.parts import AttackDescription, Check
from vestige.reports.risk import ReleasedRecord, RiskFindings
from vestige.statistics.rates import allowed_rank
from vestige.statistics.record_risk import with_and_without
from vestige.streams import stream
from vestige.studies.audit.exhibits import picture
from vestige.studies.audit.plan import Audit, plan_facts, release_words
from vestige.studies.audit.trials import prepare_attacks
from vestige.studies.declared import Declared
from vestige.studies.report_parts import attack_facts, audit_limits, finite
from vestige.studies.risk.releases import (
    Choice,
    ReleaseWork,
    UnitFacts,
    audited_once,
    choose,
    draw_batch,
    hits_of_record,
    releases_differ,
)
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, version_checks

DIGITS = 8
"""Hexadecimal digits of a record's name."""


@dataclass(frozen=True)
class RecordRisk(Declared):
    """Average and maximum risk: the same records in many releases, each with fresh randomness.

    ``audit`` says what is released, to whom, and which attacks run; its trials are not used, and of
    several distances the primary one is. Of its secrets ``records`` are drawn at random, and
    ``outliers`` are those farthest from their nearest neighbour among the secrets. Each is in
    ``repeats`` releases; batch companions, initial weights and noise are fresh in every one. For
    each of them ``controls`` releases hold another record of the class in its place: a record
    counts as exposed only if it is hit more often with it than without it, since an attack that
    reads nothing hits typical records often. Guesses are left out; controls take their place.
    """

    audit: Audit
    records: int = 8
    outliers: int = 8
    repeats: int = 20
    controls: int = 1
    title: str = ""

    kind = "record risk"

    def __post_init__(self) -> None:
        if not isinstance(self.audit, Audit):
            raise BadInput(f"RecordRisk takes an Audit, not {brief(self.audit)}.")
        least = {"records": 0, "outliers": 0, "repeats": 2, "controls": 1}
        check_fields(self, least=least)
        total, pool = self.records + self.outliers, len(self.audit.secrets)
        if not 1 <= total < pool:
            raise BadInput(
                f"RecordRisk chooses records + outliers = {total:,} of {pool:,} secrets: choose at "
                "least one and fewer than all."
            )
        if len(set(self.audit.secrets.fingerprints())) < pool:
            raise BadInput(
                "Some secrets are equal, so a release without a record may hold its copy: use "
                "Records.distinct() first."
            )

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title or f"Risk of single records: {release_words(self.audit.victim.releases)}"

    @cached_property
    def attacks(self) -> dict[str, Attack]:
        """The attacks by name, without guesses."""
        named = self.audit.all_attacks.items()
        return {name: attack for name, attack in named if not is_guess(attack)}

    @cached_property
    def _choices(self) -> dict[int, Choice]:
        return {}

    def choice(self, seed: int) -> Choice:
        """The records that a run with this seed releases, as places among the secrets."""
        if seed not in self._choices:
            self._choices[seed] = choose(self.audit, self.records, self.outliers, seed)
        return self._choices[seed]

    def record_names(self, seed: int) -> dict[str, int]:
        """The names of records in the report, each with its place among the secrets.

        Names are digests keyed with the identity of the study: who does not hold the secrets cannot
        compute them, so they do not tell whether a record is among the secrets.
        """
        places = self.choice(seed).places
        prints = self.audit.secrets[list(places)].fingerprints()
        key = combined_digest(self.identity(), str(seed))
        names = (combined_digest(key, one)[:DIGITS] for one in prints)
        return dict(zip(names, places))

    def identity(self) -> str:
        """Digest of everything that decides what a release gives away."""
        return self._identity

    @cached_property
    def _identity(self) -> str:
        sizes = [self.title, self.records, self.outliers, self.repeats, self.controls]
        return combined_digest(self.kind, self.audit.identity(), json.dumps(sizes))

    def code(self) -> dict[str, str]:
        """Digests of the attacks' code, by attack."""
        return {name: code_digest(attack) for name, attack in self.attacks.items()}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """The checks of the audit, and whether anything varies between releases of a record."""
        choice = self.choice(seed)
        for label in {int(self.audit.secrets.y[place]) for place in choice.places}:
            draw_batch(self.audit, choice, label, stream(seed, "risk room", label))
        checks = audited_once(self.audit).preflight(seed)
        if not releases_differ(self.audit, choice, seed):
            return (
                *checks,
                Check.failed(
                    "Every release of a record is the same: batches of one record, and neither "
                    "initial weights nor noise are drawn, so repeating a release shows nothing.",
                    "Audit a batch with companions, or a victim that draws its weights or noise; "
                    "for a fixed release, Audit measures the average risk.",
                ),
            )
        return (
            *checks,
            Check.passed("Releases of one record differ by companions, initial weights or noise."),
            *self._power_check(),
        )

    def _power_check(self) -> tuple[Check, ...]:
        """Whether a record that is always hit, and never without it, would be called exposed."""
        count = (self.records + self.outliers) * len(self.attacks)
        level = (1 - self.audit.confidence) / 2 / count
        best = with_and_without(self.repeats, self.repeats, 0, self.repeats * self.controls)
        if best <= level:
            return ()
        return (
            Check.remark(
                f"{self.repeats} releases of each record are too few to show one exposed among "
                f"{count:,} tests, even if every release is a hit.",
                "Ask for more repeats or controls, or choose fewer records.",
            ),
        )

    def units(self) -> list[str]:
        """One unit for each release of each record, with its controls."""
        total = self.records + self.outliers
        return [
            f"record {record + 1}, release {repeat + 1}"
            for record in range(total)
            for repeat in range(self.repeats)
        ]

    def expected_time(self, seed: int, units: int) -> str:
        """How long so many releases and their controls take, if that is long."""
        return self.audit.expected_time(seed, units * (1 + self.controls))

    def prepare(self, seed: int) -> ReleaseWork:
        """Let every attack train what it needs."""
        public = self.audit.threat.public(self.audit.victim, self.audit.prior)
        prepared = prepare_attacks(self.attacks, public, seed)
        return ReleaseWork(
            self.audit, self.choice(seed), prepared, self.repeats, self.controls, seed
        )

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored unit is damaged or lacks an attack of this study."""
        self._facts(result)

    def _facts(self, result: UnitResult) -> UnitFacts:
        total = self.records + self.outliers
        try:
            facts = UnitFacts.model_validate_json(result.body)
        except ValidationError:
            facts = None
        whole = facts is not None and (facts.record, facts.repeat) == divmod(
            result.number, self.repeats
        )
        if facts is not None and whole:
            seen = [one for controls in facts.controls.values() for one in controls]
            whole = set(facts.ranks) == set(facts.controls) == set(self.attacks)
            whole &= all(len(controls) == self.controls for controls in facts.controls.values())
            whole &= all(0 <= n < total for control in seen for n, _ in control)
        if facts is None or not whole:
            raise BadInput(
                f"The file of unit {result.number} is damaged: delete "
                f"units/{result.number:06d}.safetensors in the run folder and rerun the same "
                "command; the other units are kept."
            )
        return facts

    def findings(self, results: Sequence[UnitResult], about: Header) -> RiskFindings:
        """Hits of every record in the finished releases."""
        audit, choice = self.audit, self.choice(about.seed)
        facts = [self._facts(one) for one in results]
        first = {
            one.number // self.repeats: one for one in results if not one.number % self.repeats
        }
        settings = dict(audit.settings())
        settings.pop("Further distances", None)
        joint = [f"{len(choice.places)} records"]
        joint += [f"{len(self.attacks)} attacks"] if len(self.attacks) > 1 else []
        settings["Confidence"] = f"{audit.confidence:.0%}, joint over {' × '.join(joint)}"
        settings["Records"] = (
            f"{self.records} at random, {self.outliers} farthest from their nearest neighbour"
        )
        settings["Releases of each record"] = (
            f"{self.repeats}, and {self.repeats * self.controls} with another record of its class"
        )
        return RiskFindings(
            **plan_facts(audit),
            title=self.heading,
            seed=about.seed,
            repeats=self.repeats,
            controls=self.controls,
            releases_planned=len(self.units()),
            releases_finished=len(results),
            attacks=tuple(AttackDescription(**attack_facts(n, a)) for n, a in self.attacks.items()),
            records=tuple(
                self._record(number, name, choice, facts, first.get(number))
                for number, name in enumerate(self.record_names(about.seed))
            ),
            preflight=(*about.preflight, *version_checks(results, "releases")),
            failure=about.failure,
            limits=(
                *audit_limits(audit.prior.space),
                "Only the chosen records were released again and again: others may be at higher "
                "risk.",
            ),
            settings={**settings, "Seed": str(about.seed)},
            times=about.times,
        )

    def _record(
        self,
        number: int,
        name: str,
        choice: Choice,
        facts: Sequence[UnitFacts],
        first: UnitResult | None,
    ) -> ReleasedRecord:
        pool, place = self.audit.secrets, choice.places[number]
        drawn = {} if first is None else first.tensors
        allowed = allowed_rank(self.audit.false_positive_rate, self.audit.decoy_count)
        return ReleasedRecord(
            name=name,
            label=pool.space.class_names[int(pool.y[place])],
            group=cast("Literal['random', 'outlier']", choice.group(number)),
            neighbor_distance=finite(choice.neighbors[number]),
            found=tuple(hits_of_record(facts, number, one, allowed) for one in self.attacks),
            secret=picture(pool.x[place], pool.space),
            reconstructions=tuple(
                picture(drawn[key], pool.space) if (key := f"matched/{attack}") in drawn else None
                for attack in self.attacks
            ),
        )
