"""How much of a large population is in memory at a time; configs estimate what a run takes from this, without torch."""

BLOCK = 8192
"""Key vectors that are drawn by one generator, and worked on at a time."""

KEPT = 2**27
"""Entries of key vectors that are kept from one pass to the next (512 MiB); more are drawn again."""

SCORED = 2**24
"""Scores that are worked on at a time where there are many answers."""
