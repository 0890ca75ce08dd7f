"""A run that is there, with the experiment that its config names: what pages and notebooks show of it."""

from html import escape
from typing import TYPE_CHECKING

from toytf.config.plugins import implementation
from toytf.errors import UserError
from toytf.runs import Run

if TYPE_CHECKING:
    from toytf.report.page import Shown
    from toytf.report.story import Story


def story_of(run: Run) -> "Story":
    """The story of a run, as its experiment tells it."""
    with run.read_once():
        story: Story = implementation(run.config)(run.config).story(run)
    return story


def shown(run: Run) -> "Shown":
    """A run with its story and figures; only curves if its config cannot be read here."""
    from toytf.report.learning import learning_figures
    from toytf.report.page import Shown

    try:
        config = run.config
    except UserError:  # such as of a package that is not installed here
        return Shown(run, None, dict(learning_figures(run)))
    experiment = implementation(config)(config)
    if not run.columns and not config.trains_model:  # nothing is measured yet
        return Shown(run, experiment.story(run), {})
    found: Shown = experiment.shown(run)
    return found


def run_html(run: Run) -> str:
    """What notebooks show of a run: title, story and short table; of a run that cannot be read, why."""
    from toytf.report.headlines import short_table
    from toytf.report.portrait import title_of

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
