"""A study of your own: how many secrets come back at different ages of a network.

A study is frozen data with units of work and findings; ``vestige.run`` and ``vestige run FILE.py``
do the rest: they resume, run units on any engine and report progress. Its judge is a function of
its findings and its page a function of its report. Both are registered here, at the end.

vestige run examples/extending/study.py --out runs/ages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from markupsafe import Markup
from torch import nn

import vestige
from vestige.content import code_digest, combined_digest
from vestige.engines import Work
from vestige.errors import BadInput
from vestige.interfaces import Attack, Victim
from vestige.pages import render
from vestige.pages.shell import Front, Section, complete_settings, render_page
from vestige.records import Prior, Records
from vestige.reports.document import Document
from vestige.reports.parts import Check, Rate, Verdict, VerdictKind
from vestige.reports.report import Findings, Judgement, Report
from vestige.statistics.rates import allowed_rank, matched_rate
from vestige.studies.audit.trial_files import trial_of
from vestige.studies.judge import judge
from vestige.studies.report_parts import describe_space
from vestige.studies.stopped import stopped_verdict
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult


class AgeRate(Document):
    """How many secrets came back at one age."""

    age: str
    rate: Rate


class AgeFindings(Findings):
    """Rates at several ages; their limits hold together. ``chance`` is the rate of a guess."""

    attack: str
    chance: float
    trials: int
    ages: tuple[AgeRate, ...]

    def without_secrets(self) -> Self:
        """Rates hold no secret; the settings may name files."""
        return self.model_copy(update={"settings": {}, "redacted": True})


class AgeReport(Report[AgeFindings, Judgement]):
    """The report of a study of ages; defining it lets ``load_report`` read its files."""

    kind: str = "study of ages"


@dataclass(frozen=True)
class AgeStudy:
    """Attack the releases of a network at several ages, with the same secrets at each.

    ``victims`` are named by age, in order. A unit of work is one trial at one age.
    """

    victims: Mapping[str, Victim]
    secrets: Records
    prior: Prior
    attack: Attack
    trials: int = 20
    false_positive_rate: float = 0.1
    confidence: float = 0.95
    title: str = "Ages of a network"

    kind = "study of ages"

    def __post_init__(self) -> None:
        if not self.victims:
            raise BadInput("A study of ages needs at least one age: victims={'new': victim}.")

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title

    @cached_property
    def audits(self) -> tuple[vestige.Audit, ...]:
        """One audit for each age: trials, decoys and checks are those of an audit."""
        first = vestige.Audit(
            next(iter(self.victims.values())),
            self.secrets,
            self.prior,
            [self.attack],
            trials=self.trials,
            false_positive_rate=self.false_positive_rate,
        )
        return tuple(replace(first, victim=victim) for victim in self.victims.values())

    def identity(self) -> str:
        """Digest of all audits, in the order of ages."""
        ages = (f"{age} {audit.identity()}" for age, audit in zip(self.victims, self.audits))
        return combined_digest(self.kind, *ages)

    def code(self) -> dict[str, str]:
        """Digest of the attack's code."""
        return {self.attack.name: code_digest(self.attack)}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """The checks of every age."""
        return tuple(
            check.model_copy(update={"sentence": f"{age}: {check.sentence}"})
            for age, audit in zip(self.victims, self.audits)
            for check in audit.preflight(seed)
        )

    def units(self) -> list[str]:
        """One unit for each age and trial."""
        trials = range(self.trials)
        return [f"{age}, trial {trial + 1}" for age in self.victims for trial in trials]

    def prepare(self, seed: int) -> AgeWork:
        """Let the attack train what it needs, at every age."""
        return AgeWork(tuple(audit.prepare(seed) for audit in self.audits), self.trials)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored trial is damaged."""
        age, trial = divmod(result.number, self.trials)
        self.audits[age].check(replace(result, number=trial))

    def findings(self, results: Sequence[UnitResult], about: Header) -> AgeFindings:
        """The rates of all ages that have a trial."""
        joint = 1 - (1 - self.confidence) / len(self.victims)
        allowed = allowed_rank(self.false_positive_rate, self.audits[0].decoy_count)
        ranks: dict[str, list[int]] = {}
        for result in results:
            age, trial = divmod(result.number, self.trials)
            outcomes = trial_of(replace(result, number=trial)).outcomes
            ranks.setdefault(list(self.victims)[age], []).append(outcomes[self.attack.name].rank)
        return AgeFindings(
            title=self.title,
            space=describe_space(self.prior.space),
            seed=about.seed,
            preflight=about.preflight,
            failure=about.failure,
            limits=("A stronger attack may recover more at every age.",),
            settings={"Attack": self.attack.name, "Trials, seed": f"{self.trials}, {about.seed}"},
            times=about.times,
            attack=self.attack.name,
            chance=self.false_positive_rate,
            trials=self.trials * len(self.victims),
            ages=tuple(
                AgeRate(age=age, rate=matched_rate(found, allowed, joint))
                for age, found in ranks.items()
            ),
        )


@dataclass(frozen=True)
class AgeWork:
    """Runs one trial at one age; engines send it to their workers."""

    ages: tuple[Work, ...]
    trials: int

    def __call__(self, number: int) -> bytes:
        """Run a trial."""
        age, trial = divmod(number, self.trials)
        return self.ages[age](trial)


def judge_ages(findings: AgeFindings) -> Judgement:
    """Say at which age most secrets come back, if any do more often than by chance."""
    finished = sum(one.rate.trials for one in findings.ages)
    stopped = stopped_verdict(findings.failure, finished, findings.trials, "trials")
    exposed = [one for one in findings.ages if one.rate.lower > findings.chance]
    if stopped is not None or not exposed:
        return Judgement(
            verdict=stopped
            or Verdict(
                kind=VerdictKind.NOT_DEMONSTRATED,
                headline="At no age more secrets came back than by chance.",
                lede="This is not evidence of safety.",
            ),
            checks=findings.preflight,
        )
    worst = max(exposed, key=lambda one: one.rate.value)
    verdict = Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"Most secrets come back at age {worst.age}.",
        lede=f"{findings.attack} found {worst.rate.hits} of {worst.rate.trials} there, at least "
        f"{worst.rate.lower:.0%}; a guess finds {findings.chance:.0%}.",
        attack=findings.attack,
    )
    return Judgement(verdict=verdict, checks=findings.preflight)


def render_ages(report: AgeReport, *, redact: bool = False) -> str:
    """One page with a row for every age."""
    shown = report.without_secrets() if redact else report
    row = Markup("<tr><th>{}</th><td>{} of {}</td><td>{:.0%} to {:.0%}</td></tr>")
    rows = [
        row.format(one.age, one.rate.hits, one.rate.trials, one.rate.lower, one.rate.upper)
        for one in shown.findings.ages
    ]
    head = Markup("<tr><th>Age</th><th>Hits</th><th>Limits</th></tr>")
    table = Markup("<table>{}{}</table>").format(head, Markup("").join(rows))
    return render_page(
        title=shown.findings.title,
        front=Front.of(shown.verdict),
        body=[Section("ages", "Ages", "How many secrets come back at each age?", table)],
        source="a study",
        limits=shown.findings.limits,
        settings=complete_settings(shown.findings.settings),
        checks=shown.judgement.checks,
        redacted=shown.findings.redacted,
        report=shown,
    )


judge.register(AgeFindings, judge_ages)
render.register(AgeReport, render_ages)


def example() -> AgeStudy:
    """Bundled digits behind the gradient of a network, before and after some training."""
    digits = vestige.datasets.load("digits").split(seed=0)
    network = vestige.networks.mlp(digits.space, hidden=(32,))
    models: dict[str, nn.Module] = {"0 steps": network}
    for steps in (100, 400):
        models[f"{steps} steps"] = vestige.victims.trained(
            network, digits.held_out, steps=steps, learning_rate=0.1
        )
    return AgeStudy(
        {age: vestige.victims.SharedGradient(model) for age, model in models.items()},
        digits.train,
        digits.prior,
        vestige.attacks.InvertingGradients(iterations=60),
        trials=10,
    )


study = example()
