"""hamcmc watch: what it says of a run, to whom it answers, and that it only reads."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from hamcmc.cli.app import app
from hamcmc.report import watch
from hamcmc.store.directory import Directory, being_written
from tests.factorization.test_report import META, fake
from tests.report.results import Growing
from tests.report.test_report import Page


@pytest.fixture
def growing(tmp_path):
    run = Growing(tmp_path / "run")
    yield run
    run.let_go()


@pytest.fixture
def serve():
    """Start a server for a run; its port."""
    servers = []

    def start(run) -> watch.Server:
        server = watch.Server(run, 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, path="/", method="GET", **headers) -> tuple[int, str, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def words(html: str) -> str:
    return " ".join(Page(html).text.split())


def age(run, seconds: float) -> None:
    """Make the run's files as old as if nothing had been written for a while."""
    for name in watch.FILES:
        if (run / name).exists():
            os.utime(run / name, (time.time() - seconds,) * 2)


def contents(run) -> dict:
    return {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in [run, *run.rglob("*")]}


def test_the_verdict_stands_above_the_progress(growing):
    growing.grow(100)
    text = words(watch.Watched(growing.path).page())
    assert re.search(r"not converged there are only \d+ effective draws", text[: text.index("running")])


def test_the_page_follows_the_run_and_nothing_is_written(growing, serve):
    server = serve(growing.path)
    status, html, _ = ask(server)
    assert status == 200
    assert "first checkpoint is still to come" in words(html)
    assert "running" in words(html)
    growing.grow(100)
    before = contents(growing.path)
    html = ask(server)[1]
    parsed = Page(html)
    assert "iteration 100 of 400" in parsed.text
    assert "about 30 s left" in parsed.text
    assert '<progress value="100" max="400"' in html
    assert "data-live=1" in html
    assert "connect-src 'self'" in html
    assert len(parsed.plots) > 4
    top = ask(server, "/progress")[1]
    assert re.search(r'data-version="([^"]+)"', top)[1] == re.search(r'data-version="([^"]+)"', html)[1]
    assert contents(growing.path) == before
    growing.grow(300, "complete")
    assert "complete 400 iterations" in words(ask(server)[1])
    assert re.search(r'data-version="([^"]+)"', ask(server, "/progress")[1])[1] not in top


def test_an_unchanged_run_is_not_read_again(growing, serve, monkeypatch):
    growing.grow(50)
    server = serve(growing.path)
    ask(server)
    monkeypatch.setattr(watch.Result, "open", None)
    assert ask(server)[0] == 200
    assert "iteration 50" in ask(server, "/progress")[1]


def test_a_page_that_takes_a_while_is_followed_by_a_rest(growing):
    growing.grow(50)
    watched = watch.Watched(growing.path)
    version = lambda: re.search(r'data-version="([^"]+)"', watched.progress())[1]
    watched.page()
    watched._rest = time.monotonic() + 100
    before = version()
    growing.grow(50)
    assert "iteration 100" in watched.progress()
    assert version() == before
    watched._rest = 0.0
    assert version() != before
    watched._rest = time.monotonic() + 100
    growing.grow(300, "complete")
    assert version() == watched.version()  # nothing to wait for


def test_failed_stopped_stalled(growing, serve):
    server = serve(growing.path)
    growing.grow(10)
    age(growing.path, 60)
    assert "running iteration 10" in words(ask(server, "/progress")[1])  # the lock is held
    age(growing.path, 600)
    assert "stalled iteration 10 of 400 Nothing has been written for 10 min" in words(ask(server, "/progress")[1])
    growing.let_go()
    stopped = words(ask(server, "/progress")[1])
    assert f"hamcmc resume {growing.path} continues it" in stopped
    assert "stopped iteration 10 of 400" in stopped
    growing.directory = Directory.open(growing.path)
    growing.grow(1, "failed", message="<b>turned non-finite")
    failed = ask(server)[1]
    assert "&lt;b&gt;turned non-finite" in failed
    assert "failed iteration 11 of 400" in words(failed)


def test_looking_does_not_hinder_a_process_that_resumes(growing):
    growing.let_go()
    assert being_written(growing.path) is False
    growing.directory = Directory.open(growing.path)
    assert being_written(growing.path) is True


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/", "POST", {}, 405),
        ("/", "DELETE", {}, 405),
        ("/run.json", "GET", {}, 404),
        ("/../run/run.json", "GET", {}, 404),
        ("/?run.json", "GET", {}, 404),
        ("/", "GET", {"Host": "example.com"}, 421),
        ("/progress", "GET", {"Host": "evil.localhost:80"}, 421),
        ("/", "HEAD", {}, 200),
    ],
)
def test_it_answers_only_what_it_should(growing, serve, path, method, headers, status):
    found, body, sent = ask(serve(growing.path), path, method, **headers)
    assert found == status
    assert "num_samples" not in body
    assert sent["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in sent
    if method == "HEAD":
        assert not body
        assert int(sent["Content-Length"]) > 10_000


def test_it_listens_on_this_machine_alone_and_to_its_two_names(growing, serve):
    server = serve(growing.path)
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/progress", Host=f"localhost:{server.server_port}")[0] == 200


def test_a_factorization_in_its_burn_in_and_after(tmp_path, serve):
    run = fake(tmp_path / "run", meta=META | {"status": "running", "draws": 0, "iteration": 0}, num_samples=100, thin=1)
    server = serve(run)
    html = ask(server)[1]
    assert Page(html).headings == ["run", "Error", "Settings"]
    assert "iteration 60 of 120" in words(html)  # by the log, which is newer than the checkpoint
    assert "about 3 s left" in words(html)
    assert "No draws are stored yet" in words(html)
    run = fake(tmp_path / "done", meta=META, num_samples=40, thin=1)
    assert Page(ask(serve(run))[1]).headings == [
        "done",
        "Error",
        "Calibration",
        "Predictions",
        "Precisions",
        "Cost",
        "Settings",
    ]


def test_a_run_that_breaks_is_said_and_asked_again(growing, serve):
    server = serve(growing.path)
    growing.grow(10)
    asked = (growing.path / "run.json").read_bytes()
    (growing.path / "run.json").write_text("{")
    status, html, _ = ask(server)
    assert status == 200
    assert "unreadable" in words(html)
    assert "is damaged" in words(html)
    assert 'data-version=""' in html  # never the newest
    version = server.watched.version()
    server.watched.version = lambda: version
    (growing.path / "run.json").write_bytes(asked)
    assert "Diagnostics" in ask(server)[1]


def test_errors_of_the_command(growing, tmp_path):
    assert "hamcmc watch run --port 9000" in CliRunner().invoke(app, ["watch", "--help"]).output
    call = lambda *arguments: CliRunner().invoke(app, ["watch", *map(str, arguments), "--no-open"])
    done = call(tmp_path / "none")
    assert done.exit_code == 1
    assert "is not a run" in done.output
    server = watch.Server(growing.path, 0)
    done = call(growing.path, "--port", server.server_port)
    assert done.exit_code == 1
    assert f"port {server.server_port} cannot be used: Address already in use" in done.output
    server.server_close()


@pytest.mark.slow
def test_the_command_ends_with_ctrl_c(growing):
    growing.grow(20)
    command = [sys.executable, "-m", "hamcmc.cli", "watch", str(growing.path), "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    port = int(re.search(r"http://127.0.0.1:(\d+)/", line)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/progress")
    assert "iteration 20 of 400" in connection.getresponse().read().decode()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Stopped watching" in out
    assert not errors


def test_the_last_line_of_a_log_that_is_being_written(tmp_path):
    assert watch.last_progress(tmp_path) == {}
    lines = [json.dumps({"event": "progress", "iteration": i, "pad": "x" * 200}) for i in range(300)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + '\n{"event": "progress", "iterat')
    assert watch.last_progress(tmp_path)["iteration"] == 299
