"""Digests of the model and the data that a study audits, for its report.

They let a reader tell whether two reports are about one model and one set of records, and confirm a
model or a whole set that the reader already holds. A digest of few records lets a guess at them be
tested, so redacted reports keep that of the model alone (``vestige.reports.redaction``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from vestige.content import combined_digest, tensors_digest
from vestige.records import Records

MODEL, DATA, PRIOR = "model", "data", "prior"


def content_digests(study: object) -> dict[str, str]:
    """Digests of what a study is about, by ``model``, ``data`` and ``prior``; what it has.

    A study of another package says its own by a method ``content_digests``.
    """
    own = getattr(study, "content_digests", None)
    if callable(own):
        return {str(name): str(digest) for name, digest in dict(own()).items()}  # pyright: ignore[reportCallIssue, reportArgumentType]
    inner = getattr(study, "audit", None)  # that of repeated audits and of single records
    study = inner if hasattr(inner, "victim") else study
    found = {
        MODEL: _of_models(_models(study)),
        DATA: _of_records(_data(study)),
        PRIOR: _of_records(_priors(study)),
    }
    return {name: digest for name, digest in found.items() if digest}


def _models(study: Any) -> list[nn.Module]:
    """The audited models: the victim's, those of all servers, or those of captured releases."""
    victims = [getattr(study, "victim", None)]
    victims += [one.victim for one in getattr(study, "servers", ())]
    publics = [getattr(study, "public", None)]
    publics += [one.public for one in getattr(study, "releases", ())]
    simulators = [getattr(one, "simulator", None) for one in (*victims, *publics)]
    found = [getattr(one, "model", None) for one in simulators]
    return [one for one in found if isinstance(one, nn.Module)]


def _data(study: Any) -> list[Records]:
    """The records that are audited: a pool of secrets, training sets, images, known batches."""
    found = [getattr(study, name, None) for name in ("secrets", "records", "images", "others")]
    found += [one.secret for one in getattr(study, "releases", ())]
    return [one for one in found if isinstance(one, Records)]


def _priors(study: Any) -> list[Records]:
    holders = [study, getattr(study, "public", None)]
    holders += [one.public for one in tuple(getattr(study, "releases", ()))[:1]]
    found = [getattr(getattr(one, "prior", None), "records", None) for one in holders]
    return [one for one in found if isinstance(one, Records)]


def _of_models(models: Iterable[nn.Module]) -> str:
    """One digest of different models; one model before several servers counts once."""
    found = list(dict.fromkeys(tensors_digest(one.state_dict()) for one in models))
    return found[0] if len(found) == 1 else combined_digest(*found) if found else ""


def _of_records(parts: Iterable[Records]) -> str:
    found = [
        combined_digest("".join(one.fingerprints()), str(one.y.tolist()), repr(one.space))
        for one in parts
    ]
    return found[0] if len(found) == 1 else combined_digest(*found) if found else ""
