"""tracelens: why is this PyTorch training job slow, and what exactly do I change?"""

from __future__ import annotations

__version__ = "0.1.0"
