"""Runs beside the job, in our own environment: launcher, session, sampler.

``tracelens.record`` is this package and the function of the API at once: ``with tracelens.record(): ...``.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Package(types.ModuleType):
    """This package, callable: see ``tracelens.record.inprocess.record``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tracelens.record.inprocess import record

        return record(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
