"""The film strip of the median trial: how its reconstruction emerged."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.pages.pictures import data_uri
from vestige.reports import numbers
from vestige.reports.audit import Exhibit


@dataclass(frozen=True)
class StripFrame:
    """One picture of a strip: its caption in two lines, and what is read out."""

    source: str
    caption: str
    detail: str
    alt: str


@dataclass(frozen=True)
class FilmStrip:
    """The pictures of a film, from the start of the search to what it returned."""

    name: str
    label: str
    frames: tuple[StripFrame, ...]


def film_strip(exhibit: Exhibit, name: str, of: str, outcome: str) -> FilmStrip | None:
    """Return the strip of a trial, or None where it has no film.

    ``name`` and ``of`` name the trial in a heading and in a sentence; ``outcome`` is that of its
    reconstruction. Alt texts state role and outcome, nothing else.
    """
    film, last = exhibit.film, exhibit.reconstruction
    if film is None or last is None or last.shape != film.frames[0].picture.shape:
        return None
    total = numbers.count(film.iterations)
    frames = []
    for one in film.frames:
        detail = f"{numbers.count(one.after)} of {total}"
        words = f"after {detail} iterations" if one.after else "at the start of the search"
        caption = _share(one.after / film.iterations) if one.after else "start"
        alt = f"Reconstruction {of} {words}"
        frames.append(StripFrame(data_uri(one.picture), caption, detail, alt))
    alt = f"Reconstruction {of} at the end of the search: {outcome}"
    frames.append(StripFrame(data_uri(last), "end", "as returned", alt))
    if 1 < exhibit.of < 6:
        name += ", the median"
    return FilmStrip(name, f"How the reconstruction {of} emerged", tuple(frames))


def _share(part: float) -> str:
    """Write a share of the iterations in whole percent: how many they are stands below."""
    return f"{part:.0%}" if part >= 0.005 else "<1%"
