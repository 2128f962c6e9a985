"""Before an audit runs: whether its parts fit, which audit it is, whether its replay is right."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from vestige.choices import check_fields
from vestige.distances import Distance, distance_label
from vestige.errors import BadInput, VestigeError
from vestige.interfaces import Attack
from vestige.mechanisms import has_guarantee
from vestige.records import Prior, Records, TextSpace
from vestige.reports.parts import Check, CheckOutcome
from vestige.simulation.gradient_sequence import GradientSequenceSimulator
from vestige.simulation.head import HeadSimulator
from vestige.simulation.kinds import ClientSimulator, ClippingSimulator, InformedSimulator
from vestige.simulation.training_sets import ClassCounts
from vestige.statistics.rates import allowed_rank, decoys_needed
from vestige.streams import stream
from vestige.studies.audit.preflight.checks import check_form, check_replay
from vestige.studies.audit.preflight.outputs import check_dropout, check_outputs
from vestige.studies.audit.trials import drawn, first_line, release_of
from vestige.studies.diagnostics.exclusivity import Stage
from vestige.studies.report_parts import attack_settings, check_reads

if TYPE_CHECKING:
    from vestige.studies.audit.plan import Audit


def check_audit(audit: Audit) -> None:
    """Say plainly what does not fit in an audit."""
    _check_kinds(audit)
    check_fields(audit, counts=("decoys", "trials"))
    if not 0 < audit.false_positive_rate < 1 or not 0 < audit.confidence < 1:
        raise BadInput("false_positive_rate and confidence lie strictly between 0 and 1.")
    _check_model(audit)
    check_distances(audit.distances, audit.secrets, audit.prior.records)
    if audit.attacks is not None:
        check_reads(audit.attacks, audit.victim.releases, audit.prior.space)
    if audit.secrets.space != audit.prior.space:
        raise BadInput("Secrets and prior describe different spaces: load them from one dataset.")
    _check_pool(audit)
    shared = set(audit.secrets.fingerprints()) & set(audit.prior.records.fingerprints())
    if shared:
        raise BadInput(
            f"{len(shared)} records are in both secrets and prior: split one dataset with "
            "Records.split, which keeps the parts disjoint."
        )
    _check_known_records(audit)
    _check_makeup(audit)
    # A threat model says here what it cannot know about this victim.
    audit.threat.public(audit.victim, audit.prior)


def _check_known_records(audit: Audit) -> None:
    """A model trained beside known records: one record is unknown, and known nowhere else."""
    simulator = audit.victim.simulator
    if not isinstance(simulator, InformedSimulator):
        return
    known = simulator.companions
    if audit.batch_size != 1:
        raise BadInput(
            f"One record is unknown beside the {len(known):,} known ones: leave batch_size at 1."
        )
    if known.space != audit.secrets.space:
        raise BadInput("Known records and secrets describe different spaces: load them together.")
    for part, others in (("secrets", audit.secrets), ("prior", audit.prior.records)):
        shared = set(known.fingerprints()) & set(others.fingerprints())
        if shared:
            raise BadInput(
                f"{len(shared)} known records are also in the {part}: split one dataset with "
                "Records.split, and take the known records from held_out."
            )


def _check_makeup(audit: Audit) -> None:
    """A head is trained on a set of a given makeup, drawn from the secrets beside the decoys."""
    simulator = audit.victim.simulator
    if not isinstance(simulator, HeadSimulator):
        return
    makeup = simulator.training.makeup
    if not isinstance(makeup, ClassCounts):
        raise BadInput(
            "An audit draws decoys of the secret's class, which one class against the rest does "
            "not give: measure such heads with vestige.studies.measure_heads."
        )
    if audit.batch_size != makeup.size:
        raise BadInput(
            f"The head is trained on {makeup.size} records: set batch_size={makeup.size}."
        )
    if len(makeup.counts) != audit.secrets.classes:
        raise BadInput(
            f"The makeup names {len(makeup.counts)} classes and the secrets have "
            f"{audit.secrets.classes}: give one count for each class."
        )
    held = torch.bincount(audit.secrets.y.cpu(), minlength=len(makeup.counts)).tolist()
    for label, (count, wanted) in enumerate(zip(held, makeup.counts)):
        if count and not wanted:
            raise BadInput(
                f"The secrets hold records of class {label}, of which the head is trained on none: "
                "leave them out."
            )
        if count < wanted + audit.decoy_count:
            raise BadInput(
                f"The secrets hold {count} records of class {label}, but a trial needs {wanted} "
                f"and {audit.decoy_count} decoys: give more secrets."
            )


def _check_kinds(audit: Audit) -> None:
    attacks = audit.attacks
    if attacks is not None and (not isinstance(attacks, Sequence) or isinstance(attacks, str)):
        raise BadInput("attacks is a list: write attacks=[InvertingGradients()].")
    if attacks is not None and not attacks:
        raise BadInput(
            "An audit needs at least one attack: see 'vestige attacks', or leave attacks out to "
            "have them recommended."
        )
    for attack in attacks or ():
        if isinstance(attack, type):
            raise BadInput(f"{attack.__name__} is a class: pass an object, {attack.__name__}().")
        if not isinstance(attack, Attack):
            raise BadInput(
                f"{attack!r} is no attack: pass an object such as InvertingGradients() "
                "('vestige attacks' lists them)."
            )
    if isinstance(audit.victim, type) or not hasattr(audit.victim, "releases"):
        raise BadInput(
            f"The victim is a {type(audit.victim).__name__}: say what your model releases, for "
            "example SharedGradient(model)."
        )
    if not isinstance(audit.secrets, Records) or not isinstance(audit.prior, Prior):
        raise BadInput(
            "secrets are Records and prior is a Prior: write Prior(records), make Records with "
            "vestige.datasets.from_tensors, or take .train and .prior of a split."
        )
    stages = audit.exclusivity_stages
    if not isinstance(stages, Sequence) or not all(isinstance(stage, Stage) for stage in stages):
        raise BadInput("exclusivity_stages is a list of stages: write [Stage(model, step=350)].")


def _check_model(audit: Audit) -> None:
    model = audit.victim.simulator.model
    texts = isinstance(audit.secrets.space, TextSpace)
    if texts and audit.victim.simulator.normalization is not None:
        raise BadInput("Numbers of tokens are not normalised: leave normalization out for texts.")
    if not any(p.requires_grad for p in model.parameters()):
        raise BadInput("The model has no trainable parameter, so there is nothing to release.")
    if any(p.is_meta for p in model.parameters()):
        raise BadInput("The model has no weights (it is on the meta device): load them first.")
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise BadInput("The model's weights hold NaN or infinite values: load a sound model.")


def check_distances(distances: Sequence[Distance], secrets: Records, prior: Records) -> None:
    """Raise BadInput if a declared distance cannot compare records."""
    some, others = secrets.x[:2].cpu().double(), prior.x[:3].cpu().double()
    for distance in distances:
        named = "" if len(distances) == 1 else f" {distance_label(distance)!r}"
        try:
            found = distance(some, others)
        except (RuntimeError, TypeError, ValueError, IndexError, VestigeError) as error:
            raise BadInput(
                f"The distance{named} cannot compare these records, fix it: {first_line(error)}"
            ) from error
        if getattr(found, "shape", None) != (len(some), len(others)):
            raise BadInput(
                f"The distance{named} must return a tensor (k, n) for k candidates and n records, "
                "see vestige.distances."
            )


def _check_pool(audit: Audit) -> None:
    """Every trial needs a secret, its decoys of the same class, and the rest of the batch."""
    count, space = audit.decoy_count, audit.secrets.space
    if allowed_rank(audit.false_positive_rate, count) == 0:
        raise BadInput(
            f"{count} decoys cannot resolve a false_positive_rate of "
            f"{audit.false_positive_rate:g}: it needs {decoys_needed(audit.false_positive_rate)}."
        )
    for label in audit.secrets.y.unique().tolist():
        held = int((audit.secrets.y == label).sum())
        if held <= count:
            # Rounded up, so that the rate named here is one that works.
            usable = math.ceil(1e4 / held) / 1e4
            way_out = f", or set false_positive_rate to at least {usable:g}" if held > 1 else ""
            raise BadInput(
                f"The secrets hold {held} records of class {space.class_names[label]!r}, but every "
                f"trial needs a secret and {count} decoys of its class: give more secrets{way_out}."
            )
    room = len(audit.secrets) - count
    if not 1 <= audit.batch_size <= room:
        raise BadInput(
            f"A batch of {audit.batch_size} cannot be drawn from {len(audit.secrets)} secrets "
            f"beside {count} decoys: choose a batch size in 1 … {room}, or give more secrets."
        )


def fingerprint(audit: Audit) -> str:
    """Hash of everything that decides what a trial finds.

    What code does is hashed by what it gives: one release, one distance. An attack is hashed by
    its settings; which code it ran with is part of every trial's file (``content.code_digest``).
    """
    digest = hashlib.sha256()
    described = {name: attack_settings(attack) for name, attack in audit.all_attacks.items()}
    release = release_of(audit, drawn(audit, 0, 0).secret, 0, 0).release
    sizes = {n: f"{float(t.double().norm()):.3g}" for n, t in release.tensors.items()}
    some = [
        value
        for distance in audit.distances
        for value in distance(audit.secrets.x[:2], audit.secrets.x[:3]).flatten().tolist()
    ]
    simulator = audit.victim.simulator
    model = simulator.model
    facts = [audit.settings(), described, sizes, [f"{v:.4g}" for v in some], repr(model)]
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    known = [simulator.companions] if isinstance(simulator, InformedSimulator) else []
    for records in (audit.secrets, audit.prior.records, *known):
        digest.update("".join(records.fingerprints()).encode())
        digest.update(records.y.cpu().numpy().tobytes())
    return digest.hexdigest()


def preflight_checks(audit: Audit, seed: int) -> tuple[Check, ...]:
    """What suspects the audit before any attack runs."""
    secret = drawn(audit, 0, seed).secret
    release = release_of(audit, secret, 0, seed).release
    # Initial weights are the first thing a run draws, so the same stream draws them again.
    simulator = audit.victim.simulator.started(stream(seed, "victim", 0))
    # First the form: what does not fit the model cannot be replayed.
    checks = [*check_form(simulator, release), *check_outputs(simulator, secret)]
    checks += check_dropout(simulator, secret)
    replay = check_replay(simulator, release, secret, told="the victim's simulator")
    # A simulator that knows the noise has been held against its size already.
    known_noise = isinstance(simulator, GradientSequenceSimulator)
    known_noise |= isinstance(simulator, ClippingSimulator) and simulator.clipped_noise is not None
    known_noise |= isinstance(simulator, ClientSimulator) and bool(simulator.alterations)
    excused = not known_noise and has_guarantee(audit.stated_mechanism)
    if replay.outcome is CheckOutcome.FAILED and excused:
        replay = Check.remark(
            "The stated mechanism adds noise, so a replay need not match its release. "
            + replay.sentence,
        )
    checks.append(replay)
    known = audit.threat.public(audit.victim, audit.prior).simulator
    # Without a head's initial weights its training cannot be repeated.
    if known != simulator and not isinstance(known, HeadSimulator):
        seen = check_replay(known, release, secret, told="what the attacker was told")
        if seen.outcome is not CheckOutcome.PASSED:
            checks.append(
                Check.remark(
                    "The attacker was not told everything, so its own replay differs. "
                    + seen.sentence,
                )
            )
    informed = isinstance(simulator, InformedSimulator)
    parts = "Secrets, prior and known" if informed else "Secrets and prior"
    alike = "its secret's label"
    if isinstance(audit.secrets.space, TextSpace):
        alike += " and a similar length"
    checks.append(
        Check.passed(
            f"{parts} share no record (by content hash). Every decoy comes from "
            f"the secrets' pool, has {alike}, and is seen by no attacker.",
        )
    )
    return tuple(checks)
