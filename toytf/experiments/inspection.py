"""Looking at finished runs: the page of several, and probes on any checkpoint."""

import socketserver
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from toytf.errors import UserError, one_line, printable, reason
from toytf.experiments.opened import shown
from toytf.files import write_atomic
from toytf.measurement import as_row
from toytf.report.page import is_page, render
from toytf.report.terminal import print_table
from toytf.runs import Run


def inspect_runs(directories: list[Path], html: Path | None, *, serve: bool) -> None:
    """Write one page over the given runs, print where it is, and serve it if asked.

    Without a place for it, one run keeps its page, and that of several is compare.html beside the first.
    """
    runs = [_opened(directory) for directory in directories]
    path = html
    if path is None:
        first = runs[0].directory if runs[0].directory.name not in ("", "..") else runs[0].directory.resolve()
        path = runs[0].report_file if len(runs) == 1 else first.parent / "compare.html"
    if path != runs[0].report_file and path.exists() and not (path.is_dir() or is_page(path)):
        raise UserError(f"{path}: this file already exists and is not a page of toytf: choose another name with --html")
    content = render([shown(run) for run in runs]).encode(errors="surrogateescape")
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {reason(error)}") from None
    print(printable(path))  # noqa: T201
    if serve:
        with PageServer(content) as server, suppress(KeyboardInterrupt):
            print(f"{server.address} (Ctrl-C stops)", flush=True)  # noqa: T201
            webbrowser.open(server.address)
            server.serve_forever()


def print_probes(
    directory: Path, kind: str | None, *, step: int | None, seed: int | None, on: str | None = None
) -> None:
    """Run probes on a checkpoint and print the table and the worst pairs."""
    run = _opened(directory).trained
    kinds = [kind] if kind else [probe.kind for probe in run.config.probes]
    if not kinds:
        raise UserError(f"{directory}: its config lists no probes: choose one with --probe (see `toytf list probes`)")
    for result in run.probes(kinds, step=step, seed=seed, on=on).values():
        print_table(as_row(result.measurements), {found.flat: found.quantity for found in result.measurements})
        for metric, pairs in result.failures.items():
            if pairs:
                print(f"worst of {metric}: " + "; ".join(map(one_line, pairs)))  # noqa: T201


def _opened(directory: Path) -> Run:
    """A run; of a sweep, say where its page is."""
    page = directory / "sweep.html"
    if page.is_file() and not (directory / "config.yaml").exists():
        raise UserError(f"{directory}: not a run but a sweep: its page is {page}, its runs are in {directory / 'runs'}")
    return Run.open(directory)


class PageServer(socketserver.ThreadingTCPServer):
    """One page at / for browsers on this machine, on a free port of 127.0.0.1, and nothing else.

    Requests must name this address as their Host, so that no other site can have a browser read the page under a name
    of its own (DNS rebinding).
    """

    daemon_threads = True

    def __init__(self, page: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self.page = page
        port = self.server_address[1]
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self.address = f"http://{self.hosts[0]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away, or that talks nonsense, is no matter of the user's."""


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 60  # seconds that a client may keep its thread waiting
    default_request_version = "HTTP/1.0"  # the answer to a broken request has a status line, too

    def do_GET(self) -> None:
        """Send the page."""
        if [host.lower() for host in self.headers.get_all("Host", [])] not in [[host] for host in self.server.hosts]:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.requestline.split()[1] != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(self.server.page)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(self.server.page)

    def do_HEAD(self) -> None:
        """Send what goes before the page."""
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing for each request."""
