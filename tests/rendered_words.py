"""What a reader of a page is told: visible text and alternative texts, without styles and code."""

from __future__ import annotations

import html
import re

IMAGE_WORDS = re.compile(
    r"\b(?:re)?draw(?:s|n|ing|ings)?\b|\b(?:re)?drew\b|\bpictur\w*|\bimages?\b|\bpixels?\b|\bPSNR\b|"
    r"\bSSIM\b|\bphotos?\b|\bbright\w*|\bluminance\b|\bdrawing\w*|\blooks?\b",
    re.IGNORECASE,
)
"""Words of pictures."""

OTHER_SENSE = re.compile(
    r"Guess: prior draw|kind = 'draw'|looks at the prior|drawn (?:as in|for|at random)|"
    r"(?:draws|draw|are drawn|drawn)(?: its| secrets|, so| of decoys| from \d)|draws of decoys|"
    r"not drawn, and a miss|look at (?:more trials|the texts)|drawn by \d|"
    r"initial weights \d+, drawn|show no ε: one trial is a picture, not a rate"
)
"""Where records, weights or points of a chart are drawn, and no picture is; and one idiom, which
``bounds`` says without knowing what records are."""


def visible_words(page: str) -> str:
    """The text of a page as it is read or spoken."""
    body = re.sub(r"(?s)<(style|script)\b.*?</\1>", " ", page)
    spoken = re.findall(r'(?:alt|aria-label|title|aria-valuetext)="([^"]*)"', body)
    text = re.sub(r"<[^>]+>", " ", body)
    return re.sub(r"\s+", " ", html.unescape(" ".join([text, *spoken])))


def image_words(page: str) -> list[str]:
    """Words of pictures on a page, each with what stands around it."""
    words = OTHER_SENSE.sub(" ", visible_words(page))
    return [
        words[max(0, match.start() - 60) : match.end() + 40]
        for match in IMAGE_WORDS.finditer(words)
    ]
