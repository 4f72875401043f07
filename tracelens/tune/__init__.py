"""Record, apply what ``--set`` can, record again: the loop around a training command."""
