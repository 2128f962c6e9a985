"""Sentences and settings of redacted documents, without what attacks and user code said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from vestige.reports.distance_names import OWN_DISTANCES
from vestige.reports.parts import Check, CheckOutcome, Verdict

SAID = "what it said is withheld."
"""In place of what an attack or a user's code said."""

Redact = Callable[[str], str]


def replacing(texts: Iterable[tuple[str, str]]) -> Redact:
    """A function that replaces each of some texts wherever a sentence repeats it."""
    forms: dict[str, str] = {}
    for text, instead in texts:
        if text.strip() and text != instead:
            # A sentence may go on with it in lower case, or without its full stop.
            for form in (text, text[0].lower() + text[1:], text.rstrip(".")):
                forms.setdefault(form, instead if form != text.rstrip(".") else instead.rstrip("."))
    ordered = sorted((form for form in forms if form.strip()), key=len, reverse=True)

    def redact(text: str) -> str:
        for form in ordered:
            text = text.replace(form, forms[form])
        return text

    return redact


def redacted_checks(
    checks: Iterable[Check], names: Sequence[str], redact: Redact
) -> tuple[Check, ...]:
    """Checks without what attacks remarked: each of those begins with the name of its attack."""
    found = []
    for check in checks:
        sentence = redact(check.sentence)
        if check.outcome == CheckOutcome.REMARK:
            by = next((name for name in names if check.sentence.startswith(f"{name}: ")), None)
            sentence = sentence if by is None else f"{by}: {SAID}"
        update = {"sentence": sentence, "remedy": redact(check.remedy)}
        found.append(check.model_copy(update=update))
    return tuple(dict.fromkeys(found))


def redacted_verdict(verdict: Verdict, redact: Redact) -> Verdict:
    """A verdict without what its sentences repeat of attacks and user code."""
    return verdict.model_copy(
        update={
            "headline": redact(verdict.headline),
            "lede": redact(verdict.lede),
            "remedy": redact(verdict.remedy),
        }
    )


WITHHELD = "withheld"

KEPT_SETTINGS = frozenset((
    "Attacks", "Batch size", "Candidates", "Clients", "Clipping and noise", "Clipping and noise by",
    "Clipping norm C", "Confidence", "DP-SGD", "DP-SGD trained by", "Decoys per trial",
    "Defence", "Distance", "False positive rate", "Further distances", "Head", "Heads",
    "Images to train on, prior",
    "Images, attacked", "Initial weights", "Known records", "Local order", "Local training",
    "Loss", "Mode", "Network", "Others, prior", "Permutations", "Pool of a class",
    "Privacy", "Random reconstructions", "Records", "Rehearsals", "Release",
    "Releases of each record", "Repetitions",
    "Runs of each attack", "Secrets, prior", "Stated mechanism", "Strengths μ", "Table", "Texts",
    "Threat model",
    "Training", "Training steps T, sampling rate q, δ", "Utility records, held out",
    "Utility seeds, initial weights", "Utility training", "Victim",
))  # fmt: skip
"""Settings that Vestige writes itself, from counts, rates and names of its own code."""

KEPT_ENVIRONMENT = frozenset(("Vestige", "Python, torch", "Device, threads", "System"))


_MORE = "withheld, they may name files or describe records"

OWN_NAMES: dict[str, tuple[frozenset[str], str]] = {
    "Distance": (OWN_DISTANCES, "a custom distance"),
    "Loss": (
        frozenset((
            "cross_entropy", "logistic", "own", "own_loss", "mse_loss", "nll_loss", "l1_loss",
            "binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss",
        )),
        "a custom loss",
    ),
    "Network": (
        frozenset((
            "BareImprint", "HeadedModel", "ImprintedModel", "Linear", "Module", "ModuleList",
            "Polynomial", "ResidualBlock", "Sequential", "TokenModel",
        )),
        "a custom network",
    ),
    "Threat model": (
        frozenset(("HonestServer", "InformedAdversary", "MaliciousServer", "WeakAdversary")),
        "a custom threat model",
    ),
}  # fmt: skip
"""Settings that begin with the name of code: the names of Vestige and torch, and what stands in
place of any other, which a user chose and may have called like a person."""


def public_name(setting: str, name: str) -> str:
    """A name if it is one of Vestige's or torch's own; otherwise what kind of thing it names."""
    own, instead = OWN_NAMES[setting]
    return name if name in own or name == instead else instead


def public_distances(names: Iterable[str]) -> tuple[str, ...]:
    """Names of further distances; those of a user are numbered."""
    shown = [public_name("Distance", name) for name in names]
    own = iter(range(1, len(shown) + 1))
    return tuple(
        name if name in OWN_DISTANCES else f"further custom distance {next(own)}" for name in shown
    )


def _without_foreign_names(setting: str, text: str) -> str:
    if setting == "Further distances":
        return "; ".join(public_distances(text.split("; ")))
    if setting not in OWN_NAMES:
        return text
    name, comma, rest = text.partition(",")
    return public_name(setting, name) + comma + rest


def public_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that stay, without paths and without names of a user's own code."""
    kept = {
        name: _without_foreign_names(name, text)
        for name, text in settings.items()
        if (name in KEPT_SETTINGS and not is_path(text)) or text == _MORE
    }
    return kept if len(kept) == len(settings) else {**kept, "Other settings": _MORE}


def public_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the versions and the machine what names no file and no host."""
    return {name: text for name, text in environment.items() if name in KEPT_ENVIRONMENT}


def public_number(name: str, text: str) -> str:
    """A setting of an attack if it is one plain number, rounded, or a yes, a no or nothing."""
    if text in ("True", "False", "None"):
        return text
    if "seed" in name.lower() or not re.fullmatch(r"-?[0-9][0-9,_]*(\.[0-9]+)?(e-?[0-9]+)?", text):
        return WITHHELD
    whole = re.fullmatch(r"-?[0-9,_]{1,7}", text)
    return text if whole else f"{float(text.replace(',', '')):.2g}"


def public_digests(digests: Mapping[str, str]) -> dict[str, str]:
    """The digest of the model; that of few records lets a guess at them be tested."""
    return {
        name: digest if name == "model" and is_digest(digest) else WITHHELD
        for name, digest in digests.items()
    }


def is_path(text: str) -> bool:
    """Whether a text may be the path of a file."""
    return "/" in text or "\\" in text


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 digest, which names nothing."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None
