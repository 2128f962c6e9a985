"""A captured release and no secret: candidates, how well they fit, and where runs agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from vestige import attacks as attack_room
from vestige.choices import check_fields, check_object, check_whole
from vestige.content import code_digest, combined_digest, tensors_digest
from vestige.engines import Engine
from vestige.errors import BadInput
from vestige.interfaces import Attack, ModelRelease, Observation, Public, Reconstruction
from vestige.progress import Watch
from vestige.records import Prior, Records, TextSpace
from vestige.reports.inversion import Candidate, InversionFindings
from vestige.reports.numbers import percent
from vestige.reports.parts import AttackDescription, Check, CheckOutcome, ThreatDescription
from vestige.reports.report import Report
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.kinds import ClippingSimulator, InformedSimulator
from vestige.streams import stream
from vestige.studies.attack_choice import choice_settings
from vestige.studies.audit.exhibits import picture
from vestige.studies.audit.preflight.checks import check_alone, check_form, check_replay
from vestige.studies.audit.preflight.outputs import check_dropout, check_outputs
from vestige.studies.audit.trials import remark_of
from vestige.studies.declared import Declared
from vestige.studies.defense_words import defense_words
from vestige.studies.expected_time import expected_time
from vestige.studies.inversion.fits import measure_fit
from vestige.studies.inversion.limits import inversion_limits
from vestige.studies.inversion.rehearsals import check_rehearsals
from vestige.studies.inversion.runs import (
    InversionUnit,
    InversionWork,
    agreement,
    rank,
    runs_by_attack,
)
from vestige.studies.report_parts import (
    attack_facts,
    attack_settings,
    check_reads,
    describe_space,
    environment,
    finite,
    rehearsed_hits,
    with_table,
)
from vestige.studies.run import RESUME, run
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, version_checks
from vestige.victims.description import describe_client, privacy_words

RANGE_SLACK, LEAST_OUTSIDE = 0.25, 0.05
"""How far outside the range, relative to it, and which share of values makes a remark. Chosen
by hand, so that a search that overshoots a little is not remarked; not measured."""


@dataclass(frozen=True)
class Inversion(Declared):
    """Attack a captured release without knowing its secret.

    Every attack runs ``samples`` times from independent starts; the run with the smallest
    gradient distance is shown, and the spread over runs is its agreement map. What its candidates
    leave of the release is compared with what random candidates leave: the verdict says whether
    the release was matched at all. Without ``attacks``, ``vestige.attacks.recommended`` chooses
    them. ``reference`` is the batch of this very release, if it is known,
    to check the replay. No attack starts if a check has failed.

    ``rehearsals`` simulated releases of prior records are attacked alike, ``samples`` runs each, to
    say how close records come back behind a fit such as this one; without them a fit is a fit, and
    no confidence is given. ``settings`` and ``remarks`` are shown on the page beside our own. A
    unit of work is one run of an attack, or one rehearsal of it. A watch that asks to stop keeps
    the best candidates so far.
    """

    observation: Observation
    public: Public
    attacks: Sequence[Attack] | None = None
    samples: int = 3
    rehearsals: int = 0
    reference: Records | None = None
    title: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[Check] = ()

    kind = "inversion"

    def __post_init__(self) -> None:
        if isinstance(self.attacks, str) or not isinstance(self.attacks, Sequence | None):
            raise BadInput("attacks is a list: write attacks=[InvertingGradients()].")
        check_fields(self)
        check_object("observation of Inversion", self.observation, Observation)
        check_object("public of Inversion", self.public, Public)
        check_whole("samples of Inversion", self.samples)
        for attack in self.attacks or ():
            check_object("attack of Inversion", attack, Attack)
        if self.samples < 1 or (self.attacks is not None and not self.attacks):
            raise BadInput("Inversion needs at least one attack and one sample.")
        check_reads(self.attacks or (), type(self.observation.release), self.public.space)
        check_rehearsals(self.public, self.observation, self.rehearsals)

    @property
    def heading(self) -> str:
        """The title of the report."""
        whole = isinstance(self.observation.release, ModelRelease)
        return self.title or ("A released model" if whole else "A captured gradient")

    @cached_property
    def chosen_attacks(self) -> Sequence[Attack]:
        """The attacks as given, or as recommended."""
        if self.attacks is not None:
            return self.attacks
        return attack_room.recommended(self.public, self.observation)

    @cached_property
    def layout(self) -> tuple[InversionUnit, ...]:
        """The units: attack by attack its runs, then its rehearsals."""
        return tuple(
            InversionUnit(attack, place, number, of, rehearsal)
            for place, attack in enumerate(self.chosen_attacks)
            for rehearsal, of in ((False, self.samples), (True, self.rehearsals))
            for number in range(of)
        )

    def identity(self) -> str:
        """Digest of release, hints, model, prior, attacks and sizes."""
        release, hints, simulator = (
            self.observation.release,
            self.observation.hints,
            self.public.simulator,
        )
        facts = [self.samples, self.rehearsals, type(release).__name__, hints.batch_size]
        facts += [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(simulator)), self.public.prior.collected]
        facts += [[attack.name, attack_settings(attack)] for attack in self.chosen_attacks]
        tensors = {f"model/{n}": t for n, t in simulator.model.state_dict().items()}
        tensors |= {f"release/{n}": t for n, t in release.tensors.items()}
        tensors |= {f"buffers/{n}": t for n, t in release.buffers.items()}
        tensors |= {} if hints.labels is None else {"hints/labels": hints.labels}
        companions = simulator.companions if isinstance(simulator, InformedSimulator) else None
        parts = [self.public.prior.records, self.reference, companions]
        held = [part for part in parts if part is not None]
        tensors |= {f"labels/{number}": part.y for number, part in enumerate(held)}
        marks = ("".join(part.fingerprints()) for part in held)
        return combined_digest(self.kind, json.dumps(facts), *marks, tensors_digest(tensors))

    def code(self) -> dict[str, str]:
        """Digests of the attacks' code, by attack."""
        return {attack.name: code_digest(attack) for attack in self.chosen_attacks}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Whether the release fits the model, and is what the replay of a known batch gives."""
        release, simulator = self.observation.release, self.public.simulator
        hints = self.observation.hints
        records = self.public.prior.records
        checks = [*self.remarks, *check_form(simulator, release)]
        checks += [*check_outputs(simulator, records), *check_dropout(simulator, records)]
        checks += check_alone(
            simulator, release, hints.batch_size, self.public.classes, hints.labels
        )
        if self.reference is not None:
            replay = check_replay(simulator, release, self.reference)
            if replay.outcome is CheckOutcome.FAILED and _private(self.public) is not None:
                # Opacus divides by the expected size of a sample, the replay by the given batch's.
                replay = Check.remark(
                    "The release holds noise, and a sample whose size only the trainer "
                    "knows. " + replay.sentence,
                )
            checks.append(replay)
        return tuple(checks)

    @cached_property
    def _replayed(self) -> bool:
        """Whether the reference was given, and its replay agrees with the release."""
        if self.reference is None:
            return False
        release, simulator = self.observation.release, self.public.simulator
        return check_replay(simulator, release, self.reference).outcome is CheckOutcome.PASSED

    def units(self) -> list[str]:
        """One unit for each run and each rehearsal of an attack."""
        return [unit.name for unit in self.layout]

    def expected_time(self, seed: int, units: int) -> str:
        """How long the runs take, if that is long; a rehearsal is as many runs as samples."""
        runs = round(units / len(self.layout) * self.samples * (1 + self.rehearsals))
        return expected_time(
            self.chosen_attacks, self.public, self.observation, max(1, runs), noun="run"
        )

    def prepare(self, seed: int) -> InversionWork:
        """Nothing to prepare here: attacks are prepared with their first run."""
        return InversionWork(self, seed)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored run or rehearsal is damaged."""
        self.layout[result.number].check(result)

    def findings(self, results: Sequence[UnitResult], about: Header) -> InversionFindings:
        """Candidates, how well they fit, and what rehearsals reached."""
        checks = [*about.preflight, *version_checks(results, "runs")]
        candidates, fits, rehearsed, seconds = [], [], [], {}
        told = self.observation.hints.labels
        for place, attack in enumerate(self.chosen_attacks):
            done, again = runs_by_attack(self.layout, results, place)
            if not done:
                continue
            seconds[attack.name] = sum(one.seconds for one in done) / len(done)
            found = sorted((one.found for one in done), key=rank)
            candidates += _candidates(attack.name, found, self.public, told)
            generator = stream(about.seed, "random candidates", attack.name)
            fits.append(
                measure_fit(attack.name, self.public, self.observation, found, generator=generator)
            )
            checks += [
                Check.remark(f"{attack.name}: {remark}")
                for remark in sorted({remark_of(one) for one in found} - {""})
            ]
            checks += _range_checks(attack.name, found[0], self.public)
            rehearsed += again
        failure = about.failure
        if failure is not None:
            checks.append(self._stopped_check(results, failure.trial))
            failure = failure.model_copy(update={"message": checks[-1].sentence})
        parts = {
            "failure": failure,
            "candidates": tuple(candidates),
            "fits": tuple(fits),
            "rehearsals": tuple(rehearsed),
            "times": about.times.model_copy(update={"seconds_per_trial": seconds}),
        }
        return self._described(checks, about.seed).model_copy(update=parts)

    def _stopped_check(self, results: Sequence[UnitResult], waiting: int) -> Check:
        """A remark that the user stopped, with the unit that was under way."""
        cut = [one.number for one in results if one.provisional]
        unit = self.layout[cut[-1] if cut else waiting]
        ran = {self.layout[one.number].place for one in results}
        attacks = self.chosen_attacks
        left = ", ".join(one.name for place, one in enumerate(attacks) if place not in ran)
        if unit.place in ran:
            sentence = (
                f"The user stopped {unit.attack.name} in {unit.name}: its candidates are the best "
                f"so far{f', and {left} did not run' if left else ''}."
            )
        else:
            sentence = f"The user stopped before {left} finished a run."
        return Check.remark(sentence, RESUME)

    def _described(self, checks: Sequence[Check], seed: int) -> InversionFindings:
        observation, public = self.observation, self.public
        hints = observation.hints
        kind = observation.release.noun
        told = ["the model"]
        told += [f"the batch size ({hints.batch_size})"] if hints.batch_size else []
        told += ["the labels"] if hints.labels is not None else []
        private = _private(public)
        told += [] if private is None else ["how records are clipped and how large the noise is"]
        if isinstance(public.simulator, InformedSimulator):
            told.append(f"the other {len(public.simulator.companions):,} training records")
        return InversionFindings(
            title=self.heading,
            release=f"a captured {kind}",
            defense=defense_words(public.simulator),
            space=describe_space(public.space),
            threat=ThreatDescription(
                attacker="holder of this file",
                who=f"The attacker is any holder of this {kind}.",
                sees=f"One captured {kind} of {len(observation.release.tensors)} tensors.",
                told=f"{', '.join(told).capitalize()}.",
                not_told="The records.",
                prior=_prior_sentence(public.prior),
            ),
            seed=seed,
            batch_size=hints.batch_size or 1,
            confidence=0.95,
            attacks=tuple(
                AttackDescription(**attack_facts(attack.name, attack))
                for attack in self.chosen_attacks
            ),
            preflight=tuple(checks),
            replayed=self._replayed,
            limits=inversion_limits(public.space),
            settings={
                "Release": type(observation.release).__name__,
                **with_table(_client_words(public), public.space),
                "Runs of each attack": str(self.samples),
                "Seed": str(seed),
                **({} if private is None else {"Clipping and noise": privacy_words(private)}),
                **({"Rehearsals": str(self.rehearsals)} if self.rehearsals else {}),
                **choice_settings(self.chosen_attacks),
                **self.settings,
            },
            environment=environment(next(iter(public.simulator.parameters.values())).device),
        )


def invert(
    observation: Observation,
    public: Public,
    attacks: Sequence[Attack] | None = None,
    *,
    samples: int = 3,
    seed: int = 0,
    title: str = "",
    reference: Records | None = None,
    rehearsals: int = 0,
    directory: str | Path | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> Report[InversionFindings, Any]:
    """Attack a captured release and return a report on candidates: runs an :class:`Inversion`."""
    plan = Inversion(observation, public, attacks, samples, rehearsals, reference, title)
    return run(plan, seed=seed, directory=directory, engine=engine, watch=watch)


def _candidates(
    name: str, runs: list[Reconstruction], public: Public, told: Tensor | None
) -> list[Candidate]:
    """The candidates of the first run, the best, and where the others agree with it."""
    best, text = runs[0], isinstance(public.space, TextSpace)
    spread = None if text else agreement(runs)
    shown = []
    for index, values in enumerate(best.candidates):
        place = None if best.labels is None else int(best.labels[index])
        confidence = None if best.confidence is None else finite(float(best.confidence[index]))
        shown.append(
            Candidate(
                attack=name,
                label="" if place is None else public.space.class_names[place],
                label_told=told is not None and place in told.tolist(),
                confidence=confidence,
                rehearsed=rehearsed_hits(best, index),
                objective=finite(best.objective),
                picture=picture(values, public.space),
                agreement=None if spread is None else picture(spread[index]),
            )
        )
    return shown


def _prior_sentence(prior: Prior) -> str:
    given = f"{len(prior.records):,}" if prior.collected else "No"
    return f"{given} records were given as a prior."


def _range_checks(name: str, best: Reconstruction, public: Public) -> list[Check]:
    """A remark where candidates leave the range of records, as under a wrong normalisation."""
    if public.space.bounds is None or not len(best.candidates):
        return []
    if isinstance(public.space, TextSpace):  # numbers of tokens have no normalisation
        return []
    low, high = public.space.bounds
    slack = RANGE_SLACK * (high - low)
    values = best.candidates.detach()
    outside = float(((values < low - slack) | (values > high + slack)).float().mean())
    if outside < LEAST_OUTSIDE:
        return []
    return [
        Check.remark(
            f"{name}: {percent(outside)} of the values of its candidates lie outside "
            f"[{low:g}, {high:g}], the range of records; pictures show them clipped.",
            "State the normalisation that the client used.",
        )
    ]


def _private(public: Public) -> ClippedNoise | None:
    """Clipping and noise of each record's gradient, where the simulator knows of any."""
    simulator = public.simulator
    return simulator.clipped_noise if isinstance(simulator, ClippingSimulator) else None


def _client_words(public: Public) -> dict[str, str]:
    """How the attacker describes records, model and client; clipping and noise have their own."""
    described = describe_client("", public.simulator)
    shape = " × ".join(str(side) for side in public.space.shape)
    return {
        "Records": f"{shape}, {public.classes} classes",
        **{name: words for name, words in described.items() if name not in ("Victim", "Privacy")},
    }
