"""The space of texts that attacks on texts ask for."""

from __future__ import annotations

from vestige.errors import BadInput
from vestige.interfaces import Public
from vestige.records import TextSpace


def text_space(public: Public) -> TextSpace:
    """The space of texts; raise BadInput where records are no texts."""
    if not isinstance(public.space, TextSpace):
        raise BadInput("This attack reads texts: give records of a TextSpace.")
    return public.space
