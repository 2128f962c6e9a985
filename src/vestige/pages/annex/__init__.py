"""The annex of every report: built, drawn on its page, and written as Markdown."""
