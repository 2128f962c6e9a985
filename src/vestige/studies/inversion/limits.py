"""What candidates without a secret do not say, for pictures and rows, and for texts."""

from __future__ import annotations

from vestige.records import Space, TextSpace

LIMITS = (
    "Candidates were compared with no secret: nothing here says how close they come.",
    "A match says that the candidates explain the release under the description that was given. "
    "Different records can explain one release, and a normalisation that is wrong in brightness "
    "and contrast is matched by candidates that are wrong by as much.",
    "An attack that matches nothing today may be replaced by one that does.",
    "Agreement across runs says what the release determines under this attack, not that it is "
    "true. Where runs disagree, the release leaves the picture open, and what is seen there was "
    "made up by the attack or its prior. A prior can also make up the same in every run.",
)

TEXT_MATCH = (
    "A match says that the candidates explain the release under the description that was given. "
    "Different texts can explain one release."
)

TEXT_AGREEMENT = (
    "That independent runs read the same says what the release determines under this attack, not "
    "that it is true."
)


def inversion_limits(space: Space) -> tuple[str, ...]:
    """The limits of an inversion; texts have no pictures and no normalisation."""
    if not isinstance(space, TextSpace):
        return LIMITS
    return (LIMITS[0], TEXT_MATCH, LIMITS[2], TEXT_AGREEMENT)
