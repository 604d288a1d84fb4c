"""The page of a run while it goes on, served to this machine alone. The run's directory is only read."""

import contextlib
import json
import os
import re
import threading
import time
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hamcmc._types import Facts, Record
from hamcmc.diagnostics.result import Result
from hamcmc.report import factorization, frame, page
from hamcmc.report.frame import duration
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.directory import being_written
from hamcmc.store.errors import RunError
from hamcmc.store.settings import read_settings

HOST = "127.0.0.1"
FILES = ("run.json", "checkpoint", "events.jsonl")
FRESH = 10.0  # seconds after a write for which the run counts as running
PATIENCE = 120.0  # seconds without a write after which the run counts as stalled
POLICIES = {
    "Cache-Control": "no-store",
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Watched:
    """A run that is shown again and again. Its files are read again only after they have changed."""

    def __init__(self, run: Path):
        read_settings(run)  # raises if there is no run
        self.run = run
        self._lock = threading.Lock()
        self._page, self._shown, self._rest = "", "", 0.0
        self._meta: Record = {}
        self._read, self._saved, self._gap = "", 0.0, 0.0

    def page(self) -> str:
        """The report as of now, with a script that asks for news."""
        with self._lock:  # one at a time, because the page of a large run takes a while
            version = self.version()
            if version != self._shown or 'data-version=""' in self._page:
                began = time.thread_time()
                self._page = self._report(self.progress(version))
                self._shown, self._rest = version, time.monotonic() + 3 * (time.thread_time() - began)
            return self._page

    def _report(self, progress: str) -> str:
        try:
            if read_settings(self.run).get("kind") == "factorization":
                return factorization.page(self.run, progress)
            return page.page(Result.open(self.run), self.run, progress)
        except Exception as error:  # the run has just begun, or is being replaced; the next attempt may succeed
            progress = re.sub('data-version="[^"]*"', 'data-version=""', progress)
            said = frame.at_a_glance([], [f"Nothing can be shown yet: {error}"])
            return frame.document(self.run.resolve().name, progress, said, {}, "", live=True)

    def version(self) -> str:
        """A string that changes whenever the run has written something."""
        return " ".join(f"{s.st_mtime_ns:x}.{s.st_size:x}" if s else "-" for s in map(self._stat, FILES))

    def _stat(self, name: str) -> os.stat_result | None:
        with contextlib.suppress(OSError):
            return (self.run / name).stat()
        return None

    def progress(self, version: str | None = None) -> str:
        """The state of the run, as the top of the page."""
        try:
            settings, meta = read_settings(self.run), self._counters()
        except (RunError, OSError) as error:
            return self._block(version or self.version(), frame.status("unreadable", "bad", "", escape(str(error))))
        if version is None:
            # After a page that took long to make, wait before the next one: the run needs the machine.
            resting = time.monotonic() < self._rest and meta.get("status") == "running"
            version = self._shown if resting else self.version()
        total, done = page.iterations(settings), int(meta.get("iteration", 0))
        where, status, quiet = f"iteration {done:,} of {total:,}", meta.get("status"), self._quiet()
        if status == "complete":
            return self._block(version, frame.status("complete", "good", f"{total:,} iterations"))
        if status == "failed":
            message = escape(str(meta.get("message", "no message")))
            return self._block(version, frame.status("failed", "bad", where, message), (done, total))
        held = quiet < FRESH or being_written(self.run)
        if held is False:
            message = (
                f"No process is writing this run. <code>hamcmc resume {escape(str(self.run))}</code> continues it."
            )
            return self._block(version, frame.status("stopped", "warn", where, message), (done, total))
        if quiet > max(PATIENCE, 4 * self._gap):
            message = f"Nothing has been written for {duration(quiet)}."
            return self._block(version, frame.status("stalled", "warn", where, message), (done, total))
        if done and meta.get("seconds"):
            left = max(0.0, meta["seconds"] / done * (total - done) - quiet)
            where += f", about {duration(round(left) or 1)} left"
        where += f"; written {duration(max(1, round(quiet)))} ago"
        return self._block(version, frame.status("running", "live", where), (done, total))

    def _block(self, version: str, said: str, done: tuple[int, int] | None = None) -> str:
        bar = f'<progress value="{done[0]}" max="{done[1]}" aria-label="Iterations done"></progress>' if done else ""
        return f'<div id="progress" data-version="{version}">{said}{bar}</div>'

    def _counters(self) -> Facts:
        """The counters of the last checkpoint, or of the last line of the log, which is newer in a factorization."""
        saved = self._stat("checkpoint")
        read = f"{saved.st_mtime_ns}.{saved.st_size}" if saved else ""
        if read != self._read:
            checkpoint = read_checkpoint(self.run)
            self._meta, self._read = checkpoint.meta if checkpoint else {}, read
            if saved:
                self._gap = max(self._gap, saved.st_mtime - self._saved if self._saved else 0.0)
                self._saved = saved.st_mtime
        if self._meta.get("status") != "running":
            return self._meta
        return self._meta | {k: v for k, v in last_progress(self.run).items() if k in ("iteration", "seconds")}

    def _quiet(self) -> float:
        """Seconds since the run wrote anything."""
        return max(0.0, time.time() - max((s.st_mtime for s in map(self._stat, FILES) if s), default=0.0))


def last_progress(run: Path) -> Record:
    """The newest line about progress in a run's log; empty if there is none."""
    with contextlib.suppress(OSError), open(run / "events.jsonl", "rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 2**14))
        for line in reversed(log.read().splitlines()):
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == "progress":
                    return event
    return {}


class Server(ThreadingHTTPServer):
    """Serves the page at ``/`` and its top at ``/progress`` to this machine, and nothing else."""

    daemon_threads = True

    def __init__(self, run: str | os.PathLike, port: int):
        self.watched = Watched(Path(run))
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used: {error.strerror or error}. Choose another with --port, or 0 for any"
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has gone away."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the two paths."""

    server_version, sys_version = "hamcmc", ""
    timeout = 10

    def do_GET(self) -> None:
        """Answer with the page, or with the reason why not."""
        assert isinstance(self.server, Server)
        watched, port = self.server.watched, self.server.server_port
        paths = {"/": watched.page, "/progress": watched.progress}
        # Another site could let its own name resolve to this machine, and then read the page.
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._answer(421, "This server answers to its own address only.")
        elif self.path not in paths:
            self._answer(404, "There is nothing here.")
        else:
            self._answer(200, paths[self.path]())

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._answer(405, "This server is read-only.", Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _answer(self, status: int, html: str, **headers: str) -> None:
        body = html.encode()
        self.send_response(status)
        for name, value in (POLICIES | headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
