"""Small marks drawn by hand in SVG: dot arrays, interval bars, the strip of a claim.

No style attributes anywhere: the page's security policy allows one stylesheet and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from vestige.reports import numbers
from vestige.reports.parts import Rate

FEW = 25

MARKERS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0",
    "M-4-4H4V4H-4Z",
    "M0-5L5 4H-5Z",
    "M0-5.500L5.500 0L0 5.500L-5.500 0Z",
    "M0 5L5-4H-5Z",
    "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z",
)
"""One shape for each line, around its point; the first is the audited network's."""


@dataclass(frozen=True)
class DotArray:
    """Dots of which some are filled, with its two lines of text."""

    svg: Markup
    title: str
    text: str


def dots(filled: int, total: int) -> Markup:
    """Draw ``total`` dots in rows of ten, few of them larger in rows of five."""
    columns, size = (5, 16.4) if total <= FEW else (10, 8.2)
    columns = min(columns, total)
    rows = -(-total // columns)

    def path(indices: range, radius: float) -> str:
        step = 2 * radius
        return "".join(
            f"M{10 * (i % columns) + 5 - radius:g} {10 * (i // columns) + 5}"
            f"a{radius:g} {radius:g} 0 1 0 {step:g} 0a{radius:g} {radius:g} 0 1 0-{step:g} 0"
            for i in indices
        )

    return Markup(
        f'<svg class="dots" viewBox="0 0 {10 * columns} {10 * rows}" width="{size * columns:g}" '
        f'height="{size * rows:g}" role="img" aria-label="{filled} of {total} dots filled">'
        f'<path class="f-leak" d="{path(range(filled), 4)}"/>'
        f'<path class="empty" d="{path(range(filled, total), 3.5)}"/></svg>'
    )


def rate_array(rate: Rate, text: str) -> DotArray:
    """Draw a measured rate: a dot for each trial below a hundred trials, else for each percent."""
    if rate.trials < 100 or rate.hits == rate.trials:
        filled, total = rate.hits, min(rate.trials, 100)
        filled = total if rate.hits == rate.trials else filled
        title = f"{numbers.hits_of(rate)} secrets"
    else:
        # Never all dots for less than all hits.
        filled, total = min(round(100 * rate.value), 99), 100
        title = share_title(filled, rate.hits > 0)
    return DotArray(svg=dots(filled, total), title=title, text=text)


def share_array(value: float, text: str) -> DotArray:
    """Draw a share that was not measured: chance, or a claim."""
    filled = round(100 * value)
    return DotArray(svg=dots(filled, 100), title=share_title(filled, value > 0), text=text)


def share_title(filled: int, some: bool) -> str:
    """Write ``81 of 100 secrets``."""
    if filled == 0 and some:
        return "Fewer than 1 of 100"
    return f"{filled or 'None'} of 100 secrets"


def interval(rate: Rate, chance: float, *, guess: bool) -> Markup:
    """Draw a rate and its limits from 0% to 100%, with a dotted line where guessing lies."""
    places = (chance, rate.lower, rate.upper, rate.value)
    return interval_bar(*(100 * place for place in places), kind="ci guess" if guess else "ci")


def interval_bar(
    chance: float, low: float, high: float, value: float, *, kind: str = "ci"
) -> Markup:
    """Draw a value and its limits, in percent of the width, and a dotted line for chance."""
    return Markup(
        f'<svg class="{kind}" width="100%" height="20" aria-hidden="true">'
        f'<line class="ci-axis" x1="0" x2="100%" y1="10" y2="10"/>'
        f'<line class="ci-chance" x1="{chance:.2f}%" x2="{chance:.2f}%" y1="0" y2="20"/>'
        f'<line class="ci-limits" x1="{low:.2f}%" x2="{high:.2f}%" y1="10" y2="10"/>'
        f'<line class="ci-value" x1="{value:.2f}%" x2="{value:.2f}%" y1="4" y2="16"/></svg>'
    )


def rate_strip(rate: Rate, *, claimed: float | None, bound: float | None) -> Markup:
    """Draw what is demonstrated, open and ruled out, with a claim as a dashed line.

    A rate that is demonstrated beyond a bound covers what the bound rules out: the bound's own line
    stays visible.
    """
    said = [
        f"Demonstrated: at least {numbers.at_least(rate.lower)}.",
        f"Measured {numbers.rate_with_limits(rate)}.",
    ]
    ruled_out = line = ""
    if bound is not None and bound < 1:
        said.append(f"Ruled out for this mechanism: more than {numbers.allowed(bound)}.")
        ruled_out = (
            f'<rect class="f-bound" x="{100 * bound:.2f}%" y="5" '
            f'width="{100 - 100 * bound:.2f}%" height="26"/>'
        )
        if rate.lower > bound:
            line = _across(bound, "strip-claim")
    if claimed is not None:
        said.append(f"Claimed: at most {numbers.share(claimed)}.")
        line += _across(claimed, "strip-claim")
    return Markup(
        f'<svg class="strip" width="100%" height="36" role="img" aria-label="{" ".join(said)}">'
        f'<defs><pattern id="open" width="8" height="8" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect class="open-ground" width="8" height="8"/>'
        f'<rect class="open-line" width="2" height="8"/></pattern></defs>'
        f'<rect x="0" y="5" width="100%" height="26" fill="url(#open)"/>{ruled_out}'
        f'<rect class="f-leak" x="0" y="5" width="{100 * rate.lower:.2f}%" height="26"/>'
        f'<rect class="strip-frame" x="0" y="5" width="100%" height="26"/>'
        f'<line class="strip-value" x1="{100 * rate.value:.2f}%" x2="{100 * rate.value:.2f}%" '
        f'y1="0" y2="36"/>{line}</svg>'
    )


def _across(value: float, kind: str) -> str:
    """A line over the whole strip, set off from what lies below it."""
    place = f'x1="{100 * value:.2f}%" x2="{100 * value:.2f}%" y1="0" y2="36"'
    return f'<line class="strip-ground" {place}/><line class="{kind}" {place}/>'


def key_mark(style: int) -> Markup:
    """Draw the line of a curve for the legend."""
    return Markup(
        f'<svg width="34" height="14" aria-hidden="true"><g class="line line-{style}">'
        f'<path class="course" d="M0 7H34"/><path class="mark" transform="translate(17 7)" '
        f'd="{MARKERS[style]}"/></g></svg>'
    )
