"""Where work runs: this process, processes of this machine, or a Ray cluster.

An engine runs units of *work*, a function from a number to bytes. The results do not depend on the
engine, on the number of workers, or on how many of them were lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.engines.in_process import InProcess as InProcess
    from vestige.engines.local_processes import LocalProcesses as LocalProcesses
    from vestige.engines.ray_cluster import RayCluster as RayCluster
    from vestige.engines.units import Engine as Engine
    from vestige.engines.units import Finished as Finished
    from vestige.engines.units import Unit as Unit
    from vestige.engines.units import Work as Work
    from vestige.engines.units import WorkerLost as WorkerLost
    from vestige.engines.units import results as results
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
