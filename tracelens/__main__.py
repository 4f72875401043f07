"""``python -m tracelens``."""

from __future__ import annotations

from tracelens.cli import main

if __name__ == "__main__":
    main()
