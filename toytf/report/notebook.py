"""What notebooks show of a run: its title, what came out of it, and the numbers that matter."""

from html import escape
from typing import TYPE_CHECKING

from toytf.errors import UserError
from toytf.report.headlines import short_table
from toytf.report.portrait import title_of
from toytf.report.story import story_of

if TYPE_CHECKING:
    from toytf.runs import Run


def run_html(run: "Run") -> str:
    """Title, story and short table; of a run that cannot be read, why."""
    head = f"<p><b>{escape(title_of(run))}</b><br><code>{escape(str(run.directory))}</code></p>"
    try:
        with run.read_once():
            sentences, table = story_of(run).sentences, short_table(run.summary, run.columns)
    except UserError as error:
        return f"{head}<p>{escape(str(error))}</p>"
    told = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    titles = "".join(f"<th>{escape(column)}</th>" for column in ("", "measured", *table.columns, "metric"))
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in table.cells()
    )  # fmt: skip
    return f"{head}{told}<table><tr>{titles}</tr>{rows}</table>"
