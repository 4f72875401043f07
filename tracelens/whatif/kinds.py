"""Kinds of host work, classes of device work and kinds of interaction in a replay."""

from __future__ import annotations

# kinds of host work
LOAD, ALLOCATION, CAST, OPTIMIZER, DISPATCH, PYTHON, COPY, PROFILER = range(8)
HOST_WORK = ("load", "allocation", "cast", "optimizer", "dispatch", "python", "copy", "profiler")
# classes of device work
ARITHMETIC, MEMORY, SMALL, UNKNOWN, COMMUNICATION, H2D, D2H_BULK, D2H_SMALL = range(8)
DEVICE_WORK = ("arithmetic", "memory", "small", "unknown", "communication", "h2d", "d2h_bulk", "d2h_small")
# kinds of interaction
LAUNCH, SYNC, NEXT, CALL = range(4)

SMALL_COPY = 65_536  # .item()-like copies to the host stay below
