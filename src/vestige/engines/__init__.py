"""Where work runs: this process, processes of this machine, or a Ray cluster.

An engine takes *work*, a function from a number to bytes, and the units of it that are wanted. What
it gives does not depend on which engine it is, on how many workers there are, or on how many of
them were lost.
"""

from vestige.engines.in_process import InProcess
from vestige.engines.local_processes import LocalProcesses
from vestige.engines.ray_cluster import RayCluster
from vestige.engines.units import Engine, Finished, Unit, Work, WorkerLost, results

__all__ = [
    "Engine",
    "Finished",
    "InProcess",
    "LocalProcesses",
    "RayCluster",
    "Unit",
    "Work",
    "WorkerLost",
    "results",
]
