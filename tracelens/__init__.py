"""tracelens: why is this PyTorch training job slow, and what exactly do I change?"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``record`` and ``step`` of the API, imported when they are first used."""
    if name == "record":
        import tracelens.record

        return tracelens.record
    if name == "step":
        from tracelens.record.inprocess import step

        return step
    raise AttributeError(f"module 'tracelens' has no attribute {name!r}")
