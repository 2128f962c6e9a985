"""What all documents share: frozen, strict, without control characters, with a digest on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from vestige.printable import clean_texts


class Document(BaseModel):
    """Part of a report: frozen, strict about what it does not know, without control characters."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _cleaned(self) -> Self:
        for name, value in list(self.__dict__.items()):
            if isinstance(value, (str, tuple, dict)):
                object.__setattr__(self, name, clean_texts(value))
        return self


class WrittenDocument(Document):
    """A document that is written as a file of its own, with its digest (``vestige.content``).

    The digest is part of the file and not of the document, which may be changed and written again.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_digest(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "digest" in fields:
            return {name: value for name, value in fields.items() if name != "digest"}
        return fields


notebook_view: Callable[[object], str | None] | None = None
"""Returns the HTML of a document, or None where it has no view of its own.

Documents know nothing of pages: ``vestige`` sets this to a function that loads
``vestige.pages.notebook`` when a document is first shown. Without it a notebook shows the ``repr``.
"""


class NotebookDocument:
    """A document that a notebook shows by ``notebook_view``; redacted, it shows no secret."""

    def _repr_html_(self) -> str | None:
        return None if notebook_view is None else notebook_view(self)
