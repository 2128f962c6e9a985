"""Write the JSON schema of the Record to docs/record-schema.json.

python scripts/write_schema.py
"""

import json
from pathlib import Path

from vestige.record_versions import record_schema

PLACE = Path(__file__).parent.parent / "docs" / "record-schema.json"


def schema_text() -> str:
    """The schema as the file holds it."""
    return json.dumps(record_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PLACE.write_text(schema_text(), encoding="utf-8")
