"""What came out of a run in a few words, with numbers from its summary only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toytf.measurement import KINDS, Quantity, flat, reference_name, spread_name
from toytf.report.headlines import short_table
from toytf.report.table import number

if TYPE_CHECKING:
    from toytf.runs import Run


@dataclass(frozen=True)
class Story:
    """What a run says at its end."""

    sentences: tuple[str, ...]
    """What was learned or measured; remarks without which its table would be misread."""
    next_step: str
    """A command to go on with, and what it does."""

    def __str__(self) -> str:
        return " ".join(self.sentences)


def story_of(run: "Run") -> Story:
    """The story of a run, as its experiment tells it."""
    from toytf.config.plugins import implementation

    story: Story = implementation(run.config)(run.config).story(run)
    return story


def first_row(run: "Run") -> tuple[str, ...]:
    """What the first row of the short table says, as a sentence; nothing if there is no row."""
    summary = run.summary
    rows = short_table(summary, run.columns).rows
    return tuple(f"{_capital(phrase)}: {told(summary, row.quantity)}." for phrase, row in rows[:1])


def told(summary: Mapping[str, float], quantity: Quantity | str, shown: Sequence[str] = KINDS) -> str:
    """A metric with its spread, and in brackets what it can be read against: `182.1 ± 3.0 (theory 181.8)`."""
    name = quantity if isinstance(quantity, str) else flat(quantity)
    value, spread = summary[name], summary.get(spread_name(name))
    levels = {kind: summary.get(reference_name(kind, name)) for kind in shown}
    against = ", ".join(f"{kind} {short(level)}" for kind, level in levels.items() if level is not None)
    return short(value, spread) + (f" ({against})" if against else "")


def short(value: float, spread: float | None = None) -> str:
    """A number for a sentence: whole from 100 on and where it is whole, else with up to three decimals; ± spread."""
    if abs(value) >= 100:
        return f"{value:.0f}" + ("" if spread is None else f" ± {spread:.0f}")
    words = number(value)
    if "e" not in words:
        words = words.rstrip("0").rstrip(".")
    return words + ("" if spread is None else f" ± {number(spread)}")


def percent(value: float, spread: float | None = None) -> str:
    """A fraction in percent; what only rounds to 0 or 100 is not said to be so: `98.4 %`, `100 %`, `> 99.9 %`."""
    if spread is not None:
        return f"{100 * value:.1f} ± {100 * spread:.1f} %"
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    if abs(value - round(value)) < 5e-4:
        return f"{'>' if value < 1 else '<'} 99.9 %" if value > 0.5 else f"{100 * value:.1g} %"
    return f"{100 * value:.1f} %"


def listed(words: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


def counted(n: int, word: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{n} {word}" + ("" if n == 1 else "s")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
