"""Studies: questions as data, the one ``run`` that answers them, and what judges the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.studies.comparison.plan import ComparedServer as ComparedServer
    from vestige.studies.comparison.utility_training import UtilityTraining as UtilityTraining
    from vestige.studies.diagnostics.exclusivity import Stage as Stage
    from vestige.studies.heads.counting import measure_heads as measure_heads
    from vestige.studies.missing_record import missing_record as missing_record
    from vestige.studies.repeated.plan import Repeated as Repeated
    from vestige.studies.study import Study as Study
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
