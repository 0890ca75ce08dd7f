"""`toytf inspect --serve`: one page, for browsers on this machine, and nothing else."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest

import toytf
from toytf.experiments.inspection import PageServer

PAGE = "<!doctype html><title>W_OV² → u</title>".encode() + b"." * 3_000_000  # more than socket buffers hold


@pytest.fixture
def server(capfd: pytest.CaptureFixture[str]) -> Iterator[PageServer]:
    """A server at work; whatever a test sends, nothing is written to the terminal."""
    with PageServer(PAGE) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        assert connect(found, b"GET / HTTP/1.1\r\nHost: " + found.hosts[0].encode() + b"\r\n\r\n").endswith(PAGE)
        found.shutdown()
        thread.join()
    assert capfd.readouterr() == ("", "")


def connect(server: PageServer, sent: bytes) -> bytes:
    """What the server answers to these bytes, up to the end."""
    with socket.create_connection(server.server_address[:2], timeout=30) as connection:
        connection.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):  # it does not read an oversized request to the end
            connection.shutdown(socket.SHUT_WR)
            while received := connection.recv(1 << 20):
                answer += received
        return answer


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.0 (\d{3}) ", answer)
    assert found, answer[:100]
    return int(found[1])


def ask(server: PageServer, target: str = "/", method: str = "GET", host: str | None = None) -> bytes:
    return connect(server, f"{method} {target} HTTP/1.1\r\nHost: {host or server.hosts[0]}\r\n\r\n".encode())


def test_a_browser_gets_the_page(server: PageServer):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", server.address)
    with urlopen(server.address, timeout=30) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert answer.read() == PAGE


def test_only_this_machine_can_connect(server: PageServer):
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "target",
    [
        *("/report.html", "/index.html", "/config.yaml", "/checkpoints/", "/.", "/./", "//", "/?a", "/#", "*", "/%2e"),
        *(
            "/../config.yaml",
            "/%2e%2e/config.yaml",
            "/%00",
            "/\x00",
            "/%ff",
            "/%",
            "http://127.0.0.1/",
            "/é",
            "report.html",
        ),
    ],
)
def test_every_other_address_is_not_found(server: PageServer, target: str):
    answer = ask(server, target)
    assert status(answer) == 404
    assert PAGE[:20] not in answer


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}"])
def test_the_page_has_two_names(server: PageServer, host: str):
    assert status(ask(server, host=host.format(port=server.server_address[1]))) == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:{port}",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:1",
            "0.0.0.0:{port}",
            "[::1]:{port}",
        ),
        *("127.0.0.1:{port}.evil.example", "127.0.0.1:{port}@evil.example", "localhost.:{port}", ""),
        *("127.0.0.1:{port}\r\nHost: evil.example", "evil.example\r\nHost: 127.0.0.1:{port}"),
    ],
)
def test_another_name_is_refused_so_that_no_site_can_rebind_its_own(server: PageServer, host: str):
    port = server.server_address[1]
    answer = connect(server, f"GET / HTTP/1.1\r\nHost: {host.format(port=port)}\r\n\r\n".encode())
    assert status(answer) == 421
    assert PAGE[:20] not in answer


def test_a_request_without_a_name_is_refused(server: PageServer):
    assert status(connect(server, b"GET / HTTP/1.0\r\n\r\n")) == 421
    assert status(connect(server, b"GET /\r\n\r\n")) == 421


def test_HEAD_gets_what_goes_before_the_page(server: PageServer):
    head, _, body = ask(server, method="HEAD").partition(b"\r\n\r\n")
    assert status(head) == 200
    assert f"Content-Length: {len(PAGE)}".encode() in head
    assert body == b""
    assert ask(server, "/x", method="HEAD").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "log_message"]
)
def test_there_is_no_other_method(server: PageServer, method: str):
    assert status(ask(server, method=method)) == 501
    connection = HTTPConnection(*server.server_address[:2], timeout=30)
    connection.request(method, "/", body=b"x" * 1000)
    assert connection.getresponse().status == 501
    connection.close()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # https
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET / HTTP/1.\xb2\r\n\r\n", 400),
        (b"GET / / / HTTP/1.1\r\n\r\n", 400),
        (b"POST /\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n\xff\xfe\x00: \x00\r\n no header\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost", 421),
    ],
)
def test_a_broken_request_gets_an_answer_and_no_more(server: PageServer, sent: bytes, expected: int):
    answer = connect(server, sent)
    assert status(answer) == expected
    assert PAGE[:20] not in answer


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: {}\r\n\r\n"])
def test_a_client_that_goes_away_is_no_matter(server: PageServer, sent: bytes):
    """It leaves with a reset, before or in the middle of the answer."""
    for _ in range(5):
        connection = socket.create_connection(server.server_address[:2])
        connection.sendall(sent.replace(b"{}", server.hosts[0].encode()))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def test_a_client_that_says_nothing_keeps_no_other_waiting(server: PageServer):
    with socket.create_connection(server.server_address[:2]):
        assert status(ask(server)) == 200


@pytest.mark.heavy
def test_inspect_serves_the_page_of_a_run_until_interrupted(tiny_run: toytf.Run, tmp_path: Path):
    page = tmp_path / "page.html"
    command = [Path(sys.executable).with_name("toytf"), "inspect", tiny_run.directory, "--html", page, "--serve"]
    environment = {**os.environ, "BROWSER": "true", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout
        assert served.stdout.readline() == f"{page}\n"
        line = served.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ \(Ctrl-C stops\)\n", line)
        with urlopen(line.split()[0], timeout=30) as answer:
            assert answer.read() == page.read_bytes()
        served.send_signal(signal.SIGINT)
        assert served.communicate(timeout=30) == ("", "")
    assert served.returncode == 0
