"""A captured release and no secret: candidates, their confidence, and where runs agree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import torch
from torch import Tensor

from vestige import progress
from vestige.distances import mean_squared_error
from vestige.errors import BadInput, VestigeError
from vestige.evidence import assign, costs_between
from vestige.exhibits import picture
from vestige.observations import Attack, Observation, Public, Reconstruction
from vestige.preflight import check_alone, check_form, check_replay, release_noun
from vestige.private_steps import ClippedNoise
from vestige.record import (
    AttackRecord,
    Candidate,
    Check,
    CheckOutcome,
    Record,
    ThreatRecord,
    Times,
    Verdict,
    VerdictKind,
)
from vestige.record_parts import attack_settings, environment, space_record
from vestige.records import Records
from vestige.streams import stream
from vestige.trials import Moment, checked, first_line, remark_of
from vestige.verdicts import judge

LIMITS = (
    "No secret was given: nothing here says how close a candidate comes.",
    "A confident candidate can be wrong, and an attack that draws noise today may be replaced by "
    "one that does not.",
    "Agreement across runs says what the release determines under this attack, not that it is "
    "true.",
)


Watcher = Callable[[Moment], bool | None]
"""Called with every step of every run; returning True asks to stop and keep the best so far."""


def invert(
    observation: Observation,
    public: Public,
    attacks: Sequence[Attack],
    *,
    samples: int = 3,
    seed: int = 0,
    title: str = "A captured gradient",
    reference: Records | None = None,
    watcher: Watcher | None = None,
) -> Record:
    """Attack a captured release and return a Record of candidates.

    Every attack runs ``samples`` times from independent starts; the run with the smallest
    gradient distance is shown, and the spread over runs is its agreement map. ``reference`` is
    the batch of this very release, if it is known, to check the replay. No attack starts if a
    check has failed.
    """
    if samples < 1 or not attacks:
        raise BadInput("Inversion needs at least one attack and one sample.")
    release = observation.release
    for attack in attacks:
        if type(release) not in attack.reads:
            raise BadInput(
                f"{attack.name} cannot read a {type(release).__name__}: choose an attack that "
                "reads it ('vestige attacks' says what each reads)."
            )
    checks = check_form(public.simulator, release)
    checks += check_alone(public.simulator, release, observation.hints.batch_size, public.classes)
    if reference is not None:
        replay = check_replay(public.simulator, release, reference)
        if replay.outcome is CheckOutcome.FAILED and public.simulator.clipped_noise is not None:
            # Opacus divides by the expected size of a sample, the replay by the given batch's.
            replay = Check(
                outcome=CheckOutcome.REMARK,
                sentence="The release holds noise, and a sample whose size only the trainer knows. "
                + replay.sentence,
            )
        checks.append(replay)
    started, cpu = datetime.now(UTC).isoformat(timespec="seconds"), time.process_time()
    candidates: list[Candidate] = []
    seconds: dict[str, float] = {}
    failed = any(check.outcome is CheckOutcome.FAILED for check in checks)
    for place, attack in enumerate(() if failed else attacks):
        begun = time.process_time()
        runs, stopped = _runs(attack, public, observation, samples, seed, watcher)
        candidates += _candidates(attack.name, runs, public)
        seconds[attack.name] = (time.process_time() - begun) / len(runs)
        checks += [
            Check(outcome=CheckOutcome.REMARK, sentence=f"{attack.name}: {remark}")
            for remark in sorted({remark_of(found) for found in runs} - {""})
        ]
        if stopped:
            checks.append(_stopped_check(attack, len(runs), samples, attacks[place + 1 :]))
            break
    parameter = next(iter(public.simulator.parameters.values()))
    times = Times(
        started=started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu_seconds=time.process_time() - cpu,
        seconds_per_trial=seconds,
    )
    draft = _draft(observation, public, attacks, checks, title, seed, samples, parameter.device)
    return judge(draft.model_copy(update={"candidates": tuple(candidates), "times": times}))


def _runs(
    attack: Attack,
    public: Public,
    observation: Observation,
    samples: int,
    seed: int,
    watcher: Watcher | None,
) -> tuple[list[Reconstruction], bool]:
    """Independent runs of one attack, at least one, and whether somebody asked to stop."""
    runs: list[Reconstruction] = []
    asked = False

    def listen(step: progress.Step) -> bool:
        nonlocal asked
        if watcher is not None:
            asked |= bool(watcher(Moment(len(runs), samples, attack.name, step)))
        return asked

    try:
        reconstruct = attack.prepare(public, generator=stream(seed, "prepare", attack.name))
        while len(runs) < samples and not (asked and runs):
            attacker = stream(seed, "attacker", len(runs), attack.name)
            with progress.listening(listen):
                runs.append(checked(reconstruct(observation, attacker), public.space))
            # An attack that reports no steps of its own can be stopped between its runs.
            listen(progress.Step(1, 1, runs[-1].objective))
    except VestigeError:
        raise
    except Exception as cause:
        raise VestigeError(
            f"{attack.name} stopped, mend it or choose another attack: {first_line(cause)}"
        ) from cause
    return runs, asked


def _stopped_check(attack: Attack, runs: int, samples: int, left: Sequence[Attack]) -> Check:
    names = ", ".join(other.name for other in left)
    return Check(
        outcome=CheckOutcome.REMARK,
        sentence=f"Somebody stopped {attack.name} in run {runs} of {samples}: its candidates are "
        f"the best so far{f', and {names} did not run' if left else ''}.",
        remedy="Run the same command again with another --out to see all of it.",
    )


def _candidates(name: str, runs: list[Reconstruction], public: Public) -> list[Candidate]:
    best = min(runs, key=_rank)
    spread = agreement([best, *(r for r in runs if r is not best)])
    shown = []
    for index, values in enumerate(best.candidates):
        label = "" if best.labels is None else public.space.class_names[int(best.labels[index])]
        confidence = None if best.confidence is None else _finite(float(best.confidence[index]))
        shown.append(
            Candidate(
                attack=name,
                label=label,
                confidence=confidence,
                objective=_finite(best.objective),
                picture=picture(values),
                agreement=None if spread is None else picture(spread[index]),
            )
        )
    return shown


def _rank(found: Reconstruction) -> tuple[bool, float]:
    """Runs with finite candidates first, then by gradient distance."""
    objective = _finite(found.objective)
    broken = not bool(found.candidates.isfinite().all())
    return broken, math.inf if objective is None else objective


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def agreement(runs: Sequence[Reconstruction]) -> Tensor | None:
    """How stable every value is over runs (k, *shape): 1 where all agree, 0 where they differ by 1.

    Candidates of later runs are first matched to those of the first. None for a single run.
    """
    first = runs[0].candidates.detach().cpu()
    aligned = [first]
    for other in runs[1:]:
        found = other.candidates.detach().cpu()
        if found.shape == first.shape and bool(found.isfinite().all()):
            aligned.append(found[assign(costs_between(mean_squared_error, found, first))])
    if len(aligned) < 2:
        return None
    return (1 - 2 * torch.stack(aligned).std(0, correction=0)).clamp(0, 1)


def _in_words(private: ClippedNoise) -> str:
    return (
        f"each record's gradient clipped to norm {private.clipping_norm:g}, noise multiplier "
        f"{private.noise_multiplier:g}"
    )


def _draft(
    observation: Observation,
    public: Public,
    attacks: Sequence[Attack],
    checks: list[Check],
    title: str,
    seed: int,
    samples: int,
    device: torch.device,
) -> Record:
    hints = observation.hints
    kind = release_noun(observation.release)
    told = ["the model"]
    told += [f"the batch size ({hints.batch_size})"] if hints.batch_size else []
    told += ["the labels"] if hints.labels is not None else []
    private = public.simulator.clipped_noise
    told += [] if private is None else ["how records are clipped and how large the noise is"]
    known = public.simulator.companions
    told += [f"the other {len(known):,} training records"] if known is not None else []
    return Record(
        title=title,
        release=f"a captured {kind}",
        space=space_record(public.space),
        threat=ThreatRecord(
            attacker="holder of this file",
            who=f"The attacker is whoever holds this {kind}.",
            sees=f"One captured {kind} of {len(observation.release.tensors)} tensors.",
            told=f"{', '.join(told).capitalize()}.",
            not_told="The records.",
            prior=f"{len(public.prior.records):,} records that no secret is taken from.",
        ),
        seed=seed,
        trials_planned=0,
        trials_finished=0,
        batch_size=hints.batch_size or 1,
        decoys=0,
        false_positive_rate=0.01,
        confidence=0.95,
        distance="mean squared error",
        attacks=tuple(
            AttackRecord(
                name=attack.name,
                summary=attack.summary,
                cites=attack.cites,
                guess=False,
                settings=attack_settings(attack),
                outcomes=(),
            )
            for attack in attacks
        ),
        preflight=tuple(checks),
        limits=LIMITS,
        settings={
            "Release": f"{type(observation.release).__name__}",
            "Runs of each attack": str(samples),
            "Seed": str(seed),
            **({} if private is None else {"Clipping and noise": _in_words(private)}),
        },
        environment=environment(device),
        verdict=Verdict(kind=VerdictKind.INVALID, headline="Not judged yet.", lede=""),
    )
