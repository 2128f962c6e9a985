"""``vestige view``: only the user's own browser is answered, only pages below the folder, live."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from process_groups import process_group
from run_worlds import audit, run_folder
from vestige import run
from vestige.errors import BadInput, NotFound
from vestige.runs.server import HEADERS, RunServer, open_below

pytest.importorskip("uvicorn", reason="the extra view is not installed")
pytest.importorskip("starlette", reason="the extra view is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def serving(folder: Path) -> Iterator[RunServer]:
    server = RunServer(folder)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server._server.started:
            time.sleep(0.01)
        yield server
    finally:
        server.stop()
        thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    (folder / "outside").mkdir()
    (folder / "outside" / "page.html").write_text("SECRET")
    inside = folder / "inside"
    run_folder("audit", inside / "a")
    (inside / "odd name &amp;").mkdir()
    shutil.copytree(inside / "a", inside / "odd name &amp;", dirs_exist_ok=True)
    (inside / "links").mkdir()
    os.symlink(folder / "outside", inside / "links" / "folder")
    os.symlink(folder / "outside" / "page.html", inside / "links" / "page.html")
    (inside / "pipes").mkdir()
    os.mkfifo(inside / "pipes" / "page.html")
    return inside


@pytest.fixture(scope="module")
def server(base) -> Iterator[RunServer]:
    with serving(base) as one:
        yield one


def ask(server: RunServer, path: str, method: str = "GET", **headers: str):
    """Send a path exactly as it is given; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_list_and_a_page_are_served(server, base):
    status, headers, body = ask(server, f"/{server.token}/")
    assert status == 200
    assert body.count("<tr data-keys") == 2
    assert "connect-src &#39;self&#39;" in body
    for link in re.findall(r'href="([^"#]+page\.html)"', body):
        status, headers, page = ask(server, f"/{server.token}/{link}")
        assert (status, page) == (200, (base / "a" / "page.html").read_text())
        assert {name.lower() for name in HEADERS} <= {name.lower() for name in headers}
    status, headers, _ = ask(server, f"/{server.token}/", "HEAD")
    assert status == 200


def test_rows_are_sent_once(server):
    status, headers, body = ask(server, f"/{server.token}/rows")
    assert (status, body.count("<tr ")) == (200, 2)
    status, _, again = ask(server, f"/{server.token}/rows", If_None_Match=headers["etag"])
    assert (status, again) == (304, "")


def test_a_foreign_host_is_refused(server):
    port = server.port
    names = ["evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""]
    for host in [*names, f"127.0.0.1:{port}.evil.example", f"[::1]:{port}"]:
        assert ask(server, f"/{server.token}/", Host=host)[0] in (400, 403), host
    assert ask(server, f"/{server.token}/", Host=f"localhost:{port}")[0] == 200


def raw_status(server: RunServer, target: str, host: str) -> int:
    """Send a request line byte for byte; return the status of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split(b" ", 2)[1])


def test_a_target_in_absolute_form_is_held_to_the_same_host(server):
    """RFC 9112, § 3.2.2: the host of such a target counts, whatever the field Host says."""
    own, path = f"127.0.0.1:{server.port}", f"/{server.token}/"
    assert raw_status(server, path, own) == 200
    assert raw_status(server, f"http://{own}{path}", own) == 200
    assert raw_status(server, f"HTTP://localhost:{server.port}{path}rows", own) == 200
    foreign = ["evil.example", f"evil.example:{server.port}", f"{own}.evil.example", f"a@{own}"]
    for host in [*foreign, "127.0.0.1", ""]:
        assert raw_status(server, f"http://{host}{path}", own) in (400, 403), host
    for target in (f"https://{own}{path}", f"ftp://{own}{path}", own, "*", path[1:]):
        assert raw_status(server, target, own) in (400, 403), target
    assert raw_status(server, f"http://{own}{path}", "evil.example") == 403


def test_a_foreign_origin_is_refused(server):
    port = server.port
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1"):
        status, headers, _ = ask(server, f"/{server.token}/rows", Origin=origin)
        assert status == 403, origin
        assert "access-control-allow-origin" not in {name.lower() for name in headers}
    for site in ("cross-site", "same-site"):
        assert ask(server, f"/{server.token}/", Sec_Fetch_Site=site)[0] == 403
    assert ask(server, f"/{server.token}/rows", Origin=f"http://127.0.0.1:{port}")[0] == 200


def test_a_missing_or_wrong_token_is_refused(server):
    other = server.token[:-1] + ("A" if server.token[-1] != "A" else "B")
    paths = ["/", "/rows", "/a/page.html", f"/{other}/", f"/{other}/rows", f"//{server.token}/"]
    for path in [*paths, f"/{server.token}x/", f"/{server.token[:-1]}/", "/%00/", "/%C3%A4/"]:
        status, _, body = ask(server, path)
        assert status == 403, path
        assert server.token not in body
    assert len(server.token) >= 32


ESCAPES = [
    "../outside/page.html",
    "a/../../outside/page.html",
    "%2e%2e/outside/page.html",
    "..%2foutside%2fpage.html",
    "%252e%252e/outside/page.html",
    "a/%2e%2e/a/page.html",
    "..\\outside\\page.html",
    "..%5coutside%5cpage.html",
    "/etc/passwd",
    "//etc/passwd",
    "%2fetc%2fpasswd",
    "links/folder/page.html",
    "links/page.html",
    "pipes/page.html",
    "a//page.html",
    "a/./page.html",
    "a/page.html/",
    "a/page.html%00.png",
    "a/report.json",
    "a/units/000000.safetensors",
    "a/manifest.json",
    "a/lock",
    "a",
    "a/",
    "nothing/page.html",
    "page.html?x=../../outside/page.html",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_nothing_else_is_served(server, base, path):
    status, _, body = ask(server, f"/{server.token}/{path}")
    assert status in (403, 404), path
    assert "SECRET" not in body
    absolute = str(base.parent / "outside" / "page.html")
    assert ask(server, f"/{server.token}/{absolute}")[0] in (403, 404)


@pytest.mark.parametrize("path", [*ESCAPES, "", "\0/page.html", "/".join(["x"] * 40)])
def test_no_name_opens_what_is_outside(base, path):
    assert open_below(base, path) is None
    assert open_below(base, "a/page.html") == (base / "a" / "page.html").read_bytes()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_answered(server, method):
    assert ask(server, f"/{server.token}/", method)[0] == 405


def test_only_loopback_is_bound(server):
    assert server._server.servers[0].sockets[0].getsockname()[0] == "127.0.0.1"


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(NotFound, match="is no folder"):
        RunServer(tmp_path / "none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="not free"):
            RunServer(tmp_path, taken.getsockname()[1])
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(NotFound, match="install the extra 'view'"):
        RunServer(tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_leaves_nothing(base):
    command = [sys.executable, "-m", "vestige.cli", "view", str(base)]
    with process_group(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.search(r"127\.0\.0\.1:(\d+)/", line).group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/")
        assert connection.getresponse().status == 403
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (0, 130, -signal.SIGINT)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_list_is_live_while_a_run_progresses(tmp_path):
    """Rows appear, count and turn into a verdict without a reload; nothing else is requested."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    going, proceed = threading.Event(), threading.Event()

    def watch(where) -> bool:
        if where.done == 1 and not going.is_set():
            going.set()
            proceed.wait(60)
        return False

    with serving(tmp_path) as server, playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page()
        asked, complaints = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.address)
        assert page.locator("tbody tr").count() == 0
        worker = threading.Thread(
            target=run, args=(audit(),), kwargs={"directory": tmp_path / "x", "watch": watch}
        )
        worker.start()
        try:
            assert going.wait(60)
            page.wait_for_selector("text=Unfinished", timeout=20_000)
            assert page.locator("progress").get_attribute("value") == "1"
        finally:
            proceed.set()
            worker.join(60)
        page.wait_for_selector("text=Not demonstrated", timeout=20_000)
        assert page.locator("h1").inner_text().replace("\xa0", " ") == "1 run"
        chromium.close()
    assert complaints == []
    assert {url.split("?")[0] for url in asked} <= {server.address, f"{server.address}rows"}


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_static_list_sorts_and_filters(base, tmp_path):
    from vestige.runs.index_page import render_index
    from vestige.runs.summaries import RunSummary

    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    lines = [
        RunSummary(f"f{n}", "audit", "DEMONSTRATED", f"Title {n}", lower=n / 10, chance=0.01,
                   done=9 - n, planned=9, date=f"2026-01-{10 + n}T00:00:00+00:00", cpu_seconds=n)
        for n in (3, 1, 2)
    ]  # fmt: skip
    path = tmp_path / "index.html"
    path.write_text(render_index(lines, titles=True))
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page()
        page.goto(path.as_uri())
        titles = lambda: page.locator("tbody tr:visible th").evaluate_all(  # noqa: E731
            "all => all.map(e => e.firstChild.textContent)"
        )
        page.get_by_role("button", name="Secrets hit").click()
        assert titles() == ["Title 3", "Title 2", "Title 1"]
        page.get_by_role("button", name="Secrets hit").press("Enter")
        assert titles() == ["Title 1", "Title 2", "Title 3"]
        assert page.locator("th[aria-sort=ascending]").count() == 1
        page.get_by_label("Filter by word").fill("title f2")
        assert titles() == ["Title 2"]
        assert page.locator("#shown").inner_text() == "1 of 3"
        page.get_by_label("Filter by word").fill("nothing like it")
        assert page.locator("#none").is_visible()
        without = chromium.new_context(java_script_enabled=False).new_page()
        without.goto(path.as_uri())
        assert without.locator("tbody tr").count() == 3
        assert not without.locator("#search").is_visible()
        chromium.close()
