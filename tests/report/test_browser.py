"""The pages in a real browser: they load in peace, and plots, switches, keys, players and the live page work."""

import os
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from playwright.sync_api import Page, expect, sync_playwright

from hamcmc.report import denoise, factorization, watch, write_report
from hamcmc.speech import audio
from hamcmc.speech.file import Done, Pooled
from hamcmc.speech.metrics import Scores
from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.directory import Directory
from tests.factorization.test_report import META, fake
from tests.report.results import Growing, make_result

OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--autoplay-policy=no-user-gesture-required",
]  # fmt: skip
DRAWS = np.random.default_rng(0).standard_normal((3, 200, 2))
RATE = 8000
expect.set_options(timeout=20_000)  # a busy machine is slow


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        say = pytest.fail if os.environ.get("HAMCMC_BROWSER") == "required" else pytest.skip
        say("no Chromium on PATH: install the package 'chromium' (Debian, Fedora) or 'chromium-browser' (Ubuntu)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    many = np.random.default_rng(0).standard_normal((20, 1200))
    write_report(make_result({"theta": DRAWS}, stats={"grad_norm": DRAWS[..., 0] ** 2 + 1}), folder / "sampling.html")
    write_report(make_result({"a long name of a parameter": many}), folder / "chains.html")
    run = fake(folder / "run", meta=META)
    factorization.write(run, folder / "factorization.html")
    when = np.arange(4 * RATE) / RATE
    loud = 0.5 * np.sin(2 * np.pi * 1000 * when) * (when > 2)
    for name, sound in (("noisy", loud), ("clean", loud / 2), ("draw", loud / 4)):
        sf.write(folder / f"{name}.wav", sound, RATE)
    sd = Pooled(4.0)
    sd.add(np.random.default_rng(0).random((33, 400)), np.linspace(0, RATE / 2, 33), 0.01)
    files = [folder / "clean.wav", folder / "draw.wav"]
    done = Done(audio.info(folder / "noisy.wav"), files, [1.0, 1.0], 2.0, sd)
    asked = {"recording": "noisy.wav", "out": "clean.wav", "seed": 0}
    scores = (Scores(1.0, 1.0, 0.5), Scores(2.0, 2.0, 0.6))
    denoise.write(folder / "denoise.html", done, asked, audio.info(folder / "noisy.wav"), scores)
    return folder


@pytest.fixture
def visit(browser, pages):
    """Open a page by its name or address; at the end there must have been no error, and no request but for itself."""
    contexts, problems, asked = [], [], []

    def visit(name: str, **options) -> Page:
        given = {"viewport": {"width": 1000, "height": 900}, "reduced_motion": "reduce"} | options
        context = browser.new_context(**given)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(name if ":" in name else (pages / f"{name}.html").as_uri())
        return page

    def leave() -> None:
        while contexts:
            contexts.pop().close()

    visit.leave = leave
    yield visit
    leave()
    assert [p for p in problems if "ERR_CONNECTION_REFUSED" not in p] == []  # of a server that has ended
    assert [u for u in asked if not u.startswith(("file:", "data:", "http://127.0.0.1:"))] == []


@pytest.fixture
def serve(visit):
    """Serve a run live; pages of `visit` stop asking before the server ends."""
    servers = []

    def serve(run: Path) -> watch.Server:
        servers.append(watch.Server(run, 0))
        threading.Thread(target=servers[-1].serve_forever, args=[0.01], daemon=True).start()
        return servers[-1]

    yield serve
    visit.leave()
    for server in servers:
        server.shutdown()
        server.server_close()


def wait(page: Page, condition: str) -> None:
    """Until a JavaScript expression holds. (The page's policy forbids what wait_for_function does.)"""
    deadline = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def colours(page: Page) -> list[int]:
    """How many colours each canvas has."""
    page.set_viewport_size({"width": page.viewport_size["width"], "height": 9000})  # all are on the screen
    wait(page, "[...plots.values()].every((p) => p.stale === false && (!p.spec.image || p.picture))")
    return page.evaluate("""() => [...document.querySelectorAll("canvas")].map((canvas) => {
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(data.buffer)).size;
    })""")


def wide(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth")


COUNTS = {"sampling": 14, "chains": 7, "factorization": 10, "denoise": 5}


@pytest.mark.parametrize("name", COUNTS)
def test_a_page_loads_in_peace_and_fits_a_phone_in_the_dark(visit, name):
    page = visit(name)
    found = colours(page)
    assert len(found) == COUNTS[name]
    assert min(found) > 20, found
    assert wide(page) <= 1000
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    assert min(colours(page)) > 20
    assert wide(page) == 360
    light = lambda name: sum(
        map(int, re.findall(r"\d+", page.eval_on_selector("body", f"e => getComputedStyle(e).{name}"))[:3])
    )
    assert light("backgroundColor") < 150
    assert light("color") > 500
    # What the plot's text is drawn in is light, too.
    wait(
        page,
        """() => {
        const canvas = document.querySelector("canvas");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const light = (i) => data[i + 3] > 200 && data[i] + data[i + 1] + data[i + 2] > 400;
        return data.some((_, i) => i % 4 === 0 && light(i));
    }""",
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", COUNTS)
def test_all_text_has_contrast(visit, name, scheme):
    page = visit(name, color_scheme=scheme)
    poor = page.evaluate("""() => {
        const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const level = (s) => (s /= 255) <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
        const light = ([r, g, b]) => 0.2126 * level(r) + 0.7152 * level(g) + 0.0722 * level(b);
        const ground = (e) => {
            for (; e; e = e.parentElement) {
                const found = numbers(getComputedStyle(e).backgroundColor);
                if (found.length === 3 || found[3] === 1) return found;
            }
            return [255, 255, 255];
        };
        const found = [];
        for (const e of document.querySelectorAll("body *")) {
            if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
            const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))].sort((p, q) => p - q);
            if ((b + 0.05) / (a + 0.05) < 4.5) found.push(e.outerHTML.slice(0, 80));
        }
        return found;
    }""")
    assert poor == []


@pytest.mark.parametrize("name", ["sampling", "chains"])
def test_a_phone_shows_r_hat_and_ess_without_scrolling(visit, name):
    page = visit(name, viewport={"width": 375, "height": 740})
    for head in page.locator("th", has_text=re.compile("^(R-hat|R-hat ensembles|ESS bulk)$")).all():
        box = head.bounding_box()
        assert box["x"] + box["width"] <= 375, head.inner_text()


def test_a_switch_that_is_focused_makes_its_lines_stand_out(visit):
    page = visit("chains")
    colours(page)
    page.keyboard.press("Tab")  # from now on the focus is visible
    page.get_by_role("button", name="chain 7", exact=True).focus()
    assert page.evaluate("lit") == "chain 7"
    page.keyboard.press("Space")
    assert not page.evaluate("dimmed('chain 3')")  # it is switched off, so the others are shown
    page.keyboard.press("Space")
    assert page.evaluate("dimmed('chain 3')")
    page.get_by_role("button", name="all", exact=True).focus()
    assert page.evaluate("lit") is None


def test_intervals_are_read_with_keys_and_pointer(visit):
    page = visit("sampling")
    figure = plot(page, "Intervals of theta")
    figure.locator("canvas").hover(position={"x": 200, "y": 10})  # a plot is drawn when it comes into view
    expect(figure.locator(".tip strong")).to_have_text("theta[0]")
    page.mouse.move(0, 0)
    figure.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(figure.locator(".tip strong")).to_have_text("theta[0]")
    page.keyboard.press("ArrowDown")
    expect(figure.locator(".tip strong")).to_have_text("theta[1]")
    assert number(values(figure)["median"]) == pytest.approx(np.median(DRAWS[..., 1]), abs=2e-3)
    page.keyboard.press("Escape")
    expect(figure.locator(".tip")).to_be_hidden()
    figure.locator("canvas").hover(position={"x": 200, "y": 10})
    expect(figure.locator(".tip strong")).to_have_text("theta[0]")


def test_spectrograms_share_their_axes(visit):
    page = visit("denoise")
    first, second = plot(page, "Spectrogram: before"), plot(page, "Spectrogram: after")
    for figure in page.locator('figure.plot[aria-label^="Spectrogram"]').all():
        figure.scroll_into_view_if_needed()  # plots are drawn when they come into view
    first.locator("canvas").hover()
    seconds = first.evaluate("f => plots.get(f).cursor.x")
    assert second.evaluate("f => plots.get(f).linked") == pytest.approx(seconds)
    assert first.bounding_box()["width"] > 900
    shared = "[...plots.values()].filter((p) => p.spec.shared)"
    page.wait_for_function(f"() => {shared}.every((p) => p.area)")
    assert len(set(page.evaluate(f"{shared}.map((p) => [p.area.left, p.area.right].join())"))) == 1
    page.mouse.move(0, 0)
    assert second.evaluate("f => plots.get(f).linked") is None


def plot(page: Page, label: str):
    """A plot by the beginning of what it is called."""
    return page.locator(f'figure.plot[aria-label^="{label}"]')


def values(figure) -> dict[str, str]:
    """The rows beside the cursor."""
    expect(figure.locator(".tip")).to_be_visible()
    rows = figure.locator(".tip div")
    return dict(zip(rows.locator("span").all_inner_texts(), rows.locator("b").all_inner_texts()))


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def test_the_pointer_shows_values_of_a_trace(visit):
    page = visit("sampling")
    figure = plot(page, "Trace of theta[1]")
    expect(figure.locator(".tip")).to_be_hidden()
    figure.locator("canvas").hover()
    tip = figure.locator(".tip")
    expect(tip).to_be_visible()
    at = int(re.fullmatch(r"draw (\d+)", tip.locator("strong").inner_text())[1])
    assert 60 < at < 140
    found = {name: number(v) for name, v in values(figure).items()}
    assert found == pytest.approx({f"chain {c}": DRAWS[c, at, 1] for c in range(3)}, abs=2e-3)
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


def test_the_pointer_shows_ranges_of_a_long_trace(visit):
    page = visit("chains")
    figure = plot(page, "Trace of a long name")
    figure.locator("canvas").hover()
    tip = figure.locator(".tip")
    first, last = map(int, re.fullmatch(r"draws (\d+) to (\d+)", tip.locator("strong").inner_text()).groups())
    assert last - first == 2  # 1200 draws in 400 places
    low, high = map(number, values(figure)["chain 0"].split(" to "))
    draws = np.random.default_rng(0).standard_normal((20, 1200))[0, first : last + 1]
    assert (low, high) == pytest.approx((draws.min(), draws.max()), abs=2e-3)
    assert "and 12 more" in tip.inner_text()


def test_the_pointer_shows_values_of_the_other_plots(visit):
    page = visit("factorization")
    errors = plot(page, "Test RMSE against iteration")
    errors.locator("canvas").hover()
    at = number(errors.locator(".tip strong").inner_text().removeprefix("iteration "))
    assert number(values(errors)["of each draw"]) == pytest.approx(1.1 + 1 / at, abs=1e-3)
    calibration = plot(page, "Observed against nominal")
    calibration.locator("canvas").hover()
    assert {"observed", "chance alone"} == set(values(calibration))
    page = visit("sampling")
    density = plot(page, "Density of theta[0]")
    density.locator("canvas").hover()
    assert "all chains" in values(density)
    pairs = plot(page, "Pair plot")
    pairs.locator("canvas").hover(position={"x": 60, "y": 200})
    expected = np.corrcoef(DRAWS.reshape(-1, 2).T)[0, 1]
    assert number(values(pairs)["correlation"]) == pytest.approx(expected, abs=2e-3)


def test_the_pointer_reads_the_picture(visit, pages):
    page = visit("denoise")
    figure = plot(page, "Spectrogram: before")
    canvas = figure.locator("canvas")
    canvas.scroll_into_view_if_needed()
    wait(page, "[...plots.values()].every((p) => !p.spec.image || p.picture)")
    db, frequencies, seconds = denoise._in_db(denoise.spectrogram(audio.info(pages / "noisy.wav")))
    top = db.max()
    for row, column in ((32, 200), (31, 240), (5, 250), (32, 10)):
        x, y = (column + 0.5) / db.shape[1] * seconds, (row + 0.5) / len(db) * frequencies[-1] / 1000
        found = figure.evaluate(f"f => plots.get(f).valueAt({{x: {x}, y: {y}}})")
        assert found == pytest.approx(max(db[row, column], top - denoise.RANGE), abs=0.2)
    canvas.focus()
    page.keyboard.press("End")
    tip = figure.locator(".tip")
    expect(tip).to_contain_text("4 seconds")
    assert re.fullmatch(r"4 seconds, 2 kHz−?[\d.]+ dB( or less)?", tip.inner_text().replace("\n", ""))
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    expect(tip.locator("strong")).to_have_text("0 seconds, 2.08 kHz")
    expect(tip).to_contain_text("or less")  # silence


def test_keys(visit):
    page = visit("sampling")
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["y"] >= 0
    assert page.eval_on_selector(".skip", "e => getComputedStyle(e).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    figure = plot(page, "Trace of theta[0]")
    canvas, head = figure.locator("canvas"), figure.locator(".tip strong")
    canvas.focus()
    page.keyboard.press("Home")
    expect(head).to_have_text("draw 0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    expect(head).to_have_text("draw 11")
    assert number(values(figure)["chain 2"]) == pytest.approx(DRAWS[2, 11, 0], abs=2e-3)
    page.keyboard.press("End")
    expect(head).to_have_text("draw 199")
    page.keyboard.press("Escape")
    expect(figure.locator(".tip")).to_be_hidden()
    pairs = plot(page, "Pair plot")
    pairs.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(pairs.locator(".tip strong")).to_have_text("theta[0] and theta[1]")


def test_a_switch_hides_a_chain_in_all_plots(visit):
    page = visit("sampling")
    drawn = lambda: page.evaluate(
        """() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(() => then(
            ["Trace of theta[0]", "Trace of theta[1]", "Density of theta[1]", "Pair plot"].map((label) =>
                document.querySelector(`figure[aria-label^="${label}"] canvas`).toDataURL())))))"""
    )
    colours(page)
    before = drawn()
    switch = page.get_by_role("button", name="chain 1")
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    assert all(a != b for a, b in zip(before, drawn(), strict=True))
    figure = plot(page, "Trace of theta[0]")
    figure.locator("canvas").hover()
    assert set(values(figure)) == {"chain 0", "chain 2"}
    page.mouse.move(0, 0)
    every = page.get_by_role("button", name="all", exact=True)
    expect(every).to_have_attribute("aria-pressed", "false")
    every.focus()
    page.keyboard.press("Space")
    expect(switch).to_have_attribute("aria-pressed", "true")
    assert drawn() == before
    page.keyboard.press("Space")
    expect(switch).to_have_attribute("aria-pressed", "false")


def test_players_switch_at_the_same_moment(visit):
    page = visit("denoise")
    choices = page.get_by_role("group", name="Recording").get_by_role("button")
    assert choices.all_inner_texts() == ["Before", "After", "Reference", "Draw 1"]
    sounds = page.locator("audio")
    assert [sounds.nth(i).is_visible() for i in range(4)] == [True, False, False, False]
    page.evaluate("document.querySelectorAll('audio').forEach((a) => (a.muted = true))")
    sounds.nth(0).evaluate("a => a.play()")
    wait(page, "document.querySelector('audio').currentTime > 0.4")
    choices.nth(3).click()
    wait(page, "!document.querySelectorAll('audio')[3].paused")
    first, now = (sounds.nth(i).evaluate("a => a.currentTime") for i in (0, 3))
    assert sounds.nth(0).evaluate("a => a.paused")
    assert now >= first >= 0.4
    assert now < first + 3
    expect(choices.nth(3)).to_have_attribute("aria-pressed", "true")
    expect(choices.nth(0)).to_have_attribute("aria-pressed", "false")
    assert [sounds.nth(i).is_visible() for i in range(4)] == [False, False, False, True]
    sounds.nth(3).evaluate("a => { a.pause(); a.currentTime = 2.5; }")
    choices.nth(1).click()
    wait(page, "Math.abs(document.querySelectorAll('audio')[1].currentTime - 2.5) < 0.05")
    assert sounds.nth(1).evaluate("a => a.paused")
    heard = "[...plots.values()].filter((p) => p.spec.x.label === 'seconds').map((p) => p.heard)"
    wait(page, f"{heard}.every((t) => Math.abs(t - 2.5) < 0.05)")  # shown in the pictures
    assert len(page.evaluate(heard)) == 5


def test_without_script_numbers_pictures_and_players_are_there(visit):
    page = visit("denoise", java_script_enabled=False)
    expect(page.get_by_text("Scripts are off")).to_be_visible()
    assert page.locator("table").first.is_visible()
    assert all(picture.is_visible() for picture in page.locator("figure img").all())
    assert all(sound.is_visible() for sound in page.locator("audio").all())
    assert not page.locator(".box").first.is_visible()


def test_the_live_page_of_a_factorization_gets_sections_after_its_burn_in(visit, serve, tmp_path):
    meta = META | {"status": "running", "draws": 0}
    run = fake(tmp_path / "run", meta=meta, num_samples=40, thin=1)
    server = serve(run)
    page = visit(server.url)
    expect(page.locator("h2")).to_have_text(["Error", "Settings"])
    with Directory.open(run) as directory:
        directory.save(Checkpoint(META, {}))
    expect(page.locator("h2")).to_have_text(["Error", "Calibration", "Predictions", "Precisions", "Cost", "Settings"])
    found = colours(page)
    assert len(found) == COUNTS["factorization"]
    assert min(found) > 20
    server.shutdown()
    server.server_close()
    expect(page.locator("#progress")).to_contain_text("hamcmc watch does not answer")


@pytest.mark.slow
def test_the_live_page_follows_and_keeps_what_the_reader_did(visit, serve, tmp_path):
    run = Growing(tmp_path / "run", chains=3)
    run.grow(50)
    page = visit(serve(run.path).url)
    expect(page.locator("#progress")).to_contain_text("iteration 50 of 400")
    page.get_by_role("button", name="chain 1").click()
    page.get_by_text("Correlations as a table").click()
    figure = plot(page, "Trace of theta[1]")
    figure.locator("canvas").focus()
    page.keyboard.press("Home")
    assert page.evaluate("scrollY") > 100
    where = figure.bounding_box()["y"]
    run.grow(150)
    expect(page.locator("dd", has_text="200 draws of 400")).to_be_visible()
    expect(page.locator("#progress")).to_contain_text("iteration 200 of 400")
    assert figure.bounding_box()["y"] == pytest.approx(where, abs=2)
    expect(page.get_by_role("button", name="chain 1")).to_have_attribute("aria-pressed", "false")
    assert page.locator("details").first.evaluate("d => d.open")
    expect(figure.locator("canvas")).to_be_focused()
    page.keyboard.press("End")
    expect(figure.locator(".tip strong")).to_have_text("draw 199")
    assert set(values(figure)) == {"chain 0", "chain 2"}
    run.grow(200, "complete")
    expect(page.locator("#progress .status")).to_have_text("complete")
    run.let_go()
