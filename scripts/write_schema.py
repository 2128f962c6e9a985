"""Write the JSON schema of the report of an audit to docs/report-schema.json.

python scripts/write_schema.py
"""

import json
from pathlib import Path

from vestige.reports.files import report_schema

PLACE = Path(__file__).parent.parent / "docs" / "report-schema.json"


def schema_text() -> str:
    """The schema as the file holds it."""
    return json.dumps(report_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PLACE.write_text(schema_text(), encoding="utf-8")
