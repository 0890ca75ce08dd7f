"""Text and tables of the documents that are generated."""

import textwrap
from collections.abc import Iterable


def filled(text: str, subsequent_indent: str = "") -> str:
    """A paragraph in lines of at most 120 characters."""
    return textwrap.fill(text, 120, subsequent_indent=subsequent_indent, break_long_words=False, break_on_hyphens=False)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose cells may hold any text of one line."""
    lines = [tuple(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    shown = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([shown[0], "|---" * len(lines[0]) + "|", *shown[1:]])
