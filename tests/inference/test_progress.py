"""One display from the beginning of a call to its end: its phases, its times, and what it leaves in a terminal."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest
from rich.console import Console

import hamcmc
from hamcmc.inference import compiled as loop
from hamcmc.inference.bar import Bar
from hamcmc.inference.display import displayed, shown
from hamcmc.inference.progress import Status, tell

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def open_one():
        """Within the test: pytest sets stderr anew between fixtures and tests."""
        monkeypatch.setattr("sys.stderr", made := Terminal())
        return made

    return open_one


def words(text):
    """Without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def last_line(screen):
    return words(screen.getvalue()).strip().splitlines()[-1]


def wait_for(condition):
    """Until it holds; a test that hangs has failed."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def standard_normal(log_prior=lambda x: -0.5 * jnp.sum(x**2)):
    return hamcmc.Posterior(log_prior, init=jnp.zeros(2))


class TestBar:
    def test_it_is_there_before_anything_has_happened(self, terminal):
        screen = terminal()
        with shown(None, "sampling"):
            line = last_line(screen)
        assert "sampling" in line
        assert "0:00 preparing" in line
        assert "left" not in line

    def test_it_moves_while_nobody_calls_it(self, terminal):
        """A thread of its own draws it again, for instance while XLA compiles."""
        screen = terminal()
        with shown(None, "sampling") as show:
            tell(show, "compiling")
            frames = screen.getvalue().count("compiling")
            wait_for(lambda: screen.getvalue().count("compiling") > frames + 2)

    def test_the_time_left_follows_from_the_rate(self):
        console = Console(file=Terminal(), force_terminal=True, width=100)
        bar = Bar("sampling", "preparing", console)
        bar.open()
        bar(Status(0.2, "adaptation", iteration=200, total=1000, rate=10.0, step_size=0.25, acceptance=0.9))
        bar.display.refresh()
        line = last_line(console.file)
        bar.close()
        assert re.search(r"20% 0:00, 1:20 left adaptation · 10 it/s · ε 0.25 · pairs 90%", line)

    def test_the_plan_stands_above_it_and_is_not_cut(self, terminal):
        screen = terminal()
        reason = "a [long] reason, " * 20
        with shown(None, "sampling") as show:
            tell(show, "plan", reason)
            tell(show, "compiling")
        said = words(screen.getvalue()).replace("\r", "")
        assert f"plan: {reason}\n" in said
        assert "compiling" in said[said.index(reason) :]

    def test_a_longer_run_begins_anew(self, terminal):
        screen = terminal()
        with shown(None, "sampling") as show:
            show(Status(1.0, "40 draws", iteration=100, total=100, rate=50.0))
            tell(show, "compiling")
            show.display.refresh()
            assert "%" not in last_line(screen)
            show(Status(0.5, "20 draws", iteration=50, total=100, rate=50.0, note="longer run"))
            show.display.refresh()
            assert re.search(r"50% 0:0\d, 0:01 left 20 draws · longer run · 50 it/s", last_line(screen))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
    def test_it_gives_the_cursor_back(self, terminal, error):
        screen = terminal()
        with pytest.raises(error), shown(None, "sampling") as show:
            assert HIDE in screen.getvalue()
            assert SHOW not in screen.getvalue()
            tell(show, "looking for the mode")
            raise error
        text = screen.getvalue()
        assert text.rindex(SHOW) > text.rindex(HIDE)
        assert text.endswith("\x1b[2K")  # erased: it never knew how much there was to do


class TestWithoutATerminal:
    @pytest.fixture(autouse=True)
    def file(self, monkeypatch):
        """stderr is a file, and whoever imports rich for it fails."""
        monkeypatch.setitem(sys.modules, "hamcmc.inference.bar", None)

        def open_one():
            """Within the test, as above."""
            monkeypatch.setattr("sys.stderr", made := io.StringIO())
            return made

        return open_one

    @pytest.mark.parametrize(("asked", "said"), [(None, "plan: because\n"), (False, "")])
    def test_nothing_but_the_plan_is_written(self, file, asked, said):
        written = file()
        with shown(asked, "sampling") as show:
            tell(show, "looking for the mode")
            tell(show, "plan", "because")
            show(Status(0.5, "20 draws", iteration=50, total=100, rate=50.0))
        assert written.getvalue() == said

    def test_a_function_is_called_itself(self, file):
        said, written = [], file()

        @displayed("sampling")
        def work(n, *, progress=None):
            """Twice n."""
            tell(progress, "doubling")
            return 2 * n

        assert work(3, progress=said.append) == 6
        assert said == [Status(0.0, "doubling")]
        assert work.__doc__ == "Twice n."
        assert written.getvalue() == ""


def distinct(said):
    """Phases in order, with all numbers of draws as one."""
    phases = [re.sub(r"^[\d,]+ draws$", "draws", s.phase) for s in said]
    return [p for i, p in enumerate(phases) if i == 0 or p != phases[i - 1]]


def test_a_run_tells_that_it_compiles_before_it_does(short_segments, monkeypatch):
    """By name: no search comes first. The compiled program exists when the second status arrives."""
    short_segments(5)
    said, compiled, trace = [], [], loop.Traced
    monkeypatch.setattr(loop, "Traced", lambda *a: compiled.append(len(said)) or trace(*a))
    hamcmc.sample(standard_normal(), "sgld", step_size=0.1, num_samples=10, warmup=10, chains=2, progress=said.append)
    assert distinct(said) == ["compiling", "warm-up", "draws"]
    assert compiled == [1]
    assert (said[0].iteration, said[1].iteration, said[2].iteration) == (0, 0, 5)


def test_a_run_in_a_terminal(terminal, monkeypatch):
    """From the first phase to the last draw on one bar."""
    screen = terminal()
    opened = []
    monkeypatch.setattr("hamcmc.inference.bar.Bar", lambda *how: opened.append(Bar(*how)) or opened[-1])
    hamcmc.sample(standard_normal(), "sgld", step_size=0.1, num_samples=10, warmup=10)
    text = words(screen.getvalue())
    assert text.index("preparing") < text.index("compiling") < text.index("10 draws")
    assert re.search(r"100% \d:\d\d 10 draws", last_line(screen))
    assert len(opened) == 1


INTERRUPTED = """
import hamcmc, jax.numpy as jnp, time

def log_prior(x):
    time.sleep(0.2)  # long enough to be interrupted while it is traced
    return -0.5 * jnp.sum(x**2)

hamcmc.sample(hamcmc.Posterior(log_prior, init=jnp.zeros(2)))
"""


def test_ctrl_c_in_a_real_terminal_before_the_first_iteration():
    """The first frame comes before any program is compiled, and Ctrl-C then leaves the terminal as it was."""
    main, other = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env)
    os.close(other)
    text = ""
    while data := read(main):
        before, text = text, text + data.decode(errors="replace")
        if "preparing" in text and "preparing" not in before:
            process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    os.close(main)
    assert "KeyboardInterrupt" in text
    assert "compiling" not in words(text)
    assert text.rindex(SHOW) > text.rindex(HIDE)


def read(main):
    """What the other side of a pseudo terminal writes; nothing when it has ended."""
    try:
        return os.read(main, 65536)
    except OSError:  # so Linux says that nobody is left
        return b""
