"""Looking at finished runs: the page of several, and probes on any checkpoint."""

import http.server
import webbrowser
from functools import partial
from pathlib import Path

from toytf.errors import UserError
from toytf.files import write_atomic
from toytf.report.page import render, run_figures
from toytf.report.terminal import print_table
from toytf.runs import Run
from toytf.training.evaluate import reference_metrics


def inspect_runs(directories: list[Path], html: Path | None, *, serve: bool) -> None:
    """Write one page over the given runs, print where it is, and serve it if asked."""
    runs = [Run.open(directory) for directory in directories]
    if html is None and len(runs) > 1:
        raise UserError("several runs make a page of their own: say where with --html FILE")
    path = html or runs[0].report_file
    content = render([(run, run_figures(run)) for run in runs]).encode()
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    print(path)  # noqa: T201
    if serve:
        _serve(path)


def print_probes(
    directory: Path, kind: str | None, *, step: int | None, seed: int | None, test: str | None = None
) -> None:
    """Run probes on a checkpoint and print the table and the worst pairs."""
    run = Run.open(directory)
    run.require_model()
    kinds = [kind] if kind else [probe.kind for probe in run.config.probes]
    if not kinds:
        raise UserError(f"{directory}: its config lists no probes: choose one with --probe (see `toytf list probes`)")
    for name in kinds:
        result = run.probe(name, step=step, seed=seed, test=test)
        print_table({**result.metrics, **reference_metrics(result.references, result.metrics)})
        for metric, pairs in result.failures.items():
            if pairs:
                print(f"worst of {metric}: " + "; ".join(pairs))  # noqa: T201


def _serve(path: Path) -> None:
    handler = partial(_QuietHandler, directory=str(path.resolve().parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/{path.name}"
        print(f"{address} (Ctrl-C ends)", flush=True)  # noqa: T201
        webbrowser.open(address)
        server.serve_forever()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing for each request."""
