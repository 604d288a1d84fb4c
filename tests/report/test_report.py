"""The report: complete, self-contained, well-formed and escaped, for good, bad and unfinished runs."""

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.report import page, plots, write_report
from tests.report.results import make_result

VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Text, identifiers, references and nesting of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.ids, self.urls, self.tags = [], [], [], Counter()
        self.text, self.headings, self.plots, self.unlabelled = "", [], [], 0
        self.feed(html)
        assert not self.open, f"unclosed: {self.open}"

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags[tag] += 1
        self.ids += [v for k, v in attrs if k == "id"]
        self.urls += [v for k, v in attrs if k in ("href", "src", "srcset", "action", "data", "poster", "xlink:href")]
        self.urls += re.findall(r"url\(([^)]*)\)", " ".join(v or "" for _, v in attrs))
        if "data-plot" in given:
            self.plots.append(json.loads(given["data-plot"]))
            self.unlabelled += not given.get("aria-label")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        if not {"style", "script"} & set(self.open):
            self.text += data + " "


def read(path) -> Page:
    """The page, with all that every page must be."""
    html = path.read_text()
    parsed = Page(html)
    assert all(u == "data:," or (u.startswith("#") and u[1:] in parsed.ids) for u in parsed.urls)
    assert "@import" not in html
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert parsed.tags["script"] == 1
    assert "content=\"default-src 'none'; " in html
    assert "connect-src" not in html
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in html
    assert "http" not in html.replace('http-equiv="Content-Security-Policy"', "")
    assert max(Counter(parsed.ids).values()) == 1
    assert parsed.unlabelled == 0
    assert parsed.tags["h1"] == parsed.tags["main"] == 1
    assert parsed.tags["table"] == parsed.tags["caption"] == parsed.tags["thead"]
    return parsed


ALL = ["Estimates", "Diagnostics", "Parameters", "Mixing", "Pairs", "Sampler", "Cost", "Settings"]


def sections(parsed: Page) -> list[str]:
    return [h for h in parsed.headings if h in ALL]


@pytest.fixture(scope="module")
def posterior():
    precision = jnp.array([[4.0, 1.0], [1.0, 2.0]])
    return hamcmc.Posterior(lambda p: -0.5 * p["mu"] @ precision @ p["mu"] - 0.5 * p["nu"] ** 2)


START = {"mu": jnp.zeros(2), "nu": jnp.zeros(())}


def test_a_run_directory(tmp_path, posterior):
    options = {"num_samples": 400, "thin": 5, "warmup": 100, "chains": 2, "seed": 7, "memory": 3, "progress": False}
    hamcmc.sample(
        posterior, "hamcmc", START, step_size=hamcmc.Polynomial(0.5), out=tmp_path / "my run", notes={"why": "a test"},
        **options,
    )  # fmt: skip
    out = write_report(tmp_path / "my run")
    assert out == tmp_path / "my run" / "report.html"
    assert out.stat().st_size < 3e6
    parsed = read(out)
    assert sections(parsed) == ALL
    assert parsed.headings[0] == "my run"
    shown = [h for h in parsed.headings if "[" in h or h == "nu"]
    assert sorted(shown[:3]) == sorted(shown[3:]) == ["mu[0]", "mu[1]", "nu"]  # with traces, and under mixing
    # intervals of mu and nu; a trace and a density each; ranks, autocorrelation and ESS each; the pair plot; five
    # statistics of the sampler and the step size
    assert len(parsed.plots) == 2 + 2 * 3 + 3 * 3 + 1 + 6
    for text in (
        "complete",
        "2,100 iterations",
        "hamcmc (memory 3",
        "(0.5 / t)^0.51",
        "2 chains × 400 draws",
        "a test",
    ):
        assert text in parsed.text
    assert "Share of pairs accepted" in parsed.text
    assert hamcmc.__version__ in parsed.text
    assert not list((tmp_path / "my run").glob("*.partial"))


def test_the_numbers_are_those_of_the_summary(tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 300, 2))
    result = make_result({"x": x}, meta={"gradients": 123456})
    parsed = read(write_report(result, tmp_path / "new" / "page.html"))
    table = result.summary()
    for i, name in enumerate(table.names):
        row = [name, *(page.format_cell(c, table[c][i]) for c in page.COLUMNS)]
        assert " ".join(row) in re.sub(r"\s+", " ", parsed.text)
    assert "123,456" in parsed.text
    assert "ESS is large enough and the chains agree." in parsed.text
    assert "A run of sgld" in parsed.headings


def test_the_verdict_and_all_costs_are_shown(tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 300, 3))
    row = {"name": "x[2]", **dict.fromkeys(("sd_error", "sd_se", "tail_error", "tail_se", "r_hat_ensembles"), None)}
    row |= {"mean_error": 0.5, "mean_se": 0.02, "r_hat": 1.001, "ess_bulk": 1200.0, "ess_tail": 1100.0}
    verdict = {"word": "wrong", "reasons": ["x[2] is <off>", "so"], "worst": [row], "parameters": 3, "gradients": 400}
    costs = {"compile": 30.0, "mode": 0.0, "adaptation": 4.0, "sampling": 2.0}
    result = make_result({"x": x}, meta={"verdict": verdict, "costs": costs})
    parsed = read(write_report(result, tmp_path / "page.html"))
    text = re.sub(r"\s+", " ", parsed.text)
    top = text[: text.index("complete")]
    assert "wrong x[2] is <off>" in top  # before everything else
    assert "x[2] – 1,200 +0.50 ± 0.02 – – 1.001 1,100" in text
    assert "400 draws confronted with gradients on all data" in text
    assert "compiling 30 s adaptation 4 s sampling 2 s in total 1,200 36 s" in text
    assert "Neither ESS nor R-hat" not in text


def test_problems_are_said_in_words(tmp_path):
    rng = np.random.default_rng(0)
    apart = rng.standard_normal((2, 300)) + np.array([[0.0], [3.0]])
    parsed = read(write_report(make_result({"good": rng.standard_normal((2, 300)), "apart": apart}), tmp_path / "a"))
    assert "The chains disagree about apart" in parsed.text
    assert "ESS is large enough" not in parsed.text
    walk = rng.standard_normal((1, 300)).cumsum(1)
    parsed = read(write_report(make_result({"walk": walk}), tmp_path / "b"))
    assert re.search(r"walk[^:]* has only \d+ effective draws", parsed.text)
    assert "A single chain cannot show" in parsed.text


def test_a_failed_run(tmp_path, posterior):
    out = tmp_path / "failed"
    with pytest.raises(hamcmc.NonFinite) as caught:
        hamcmc.sample(posterior, "sgld", START, step_size=2.0, num_samples=2000, out=out, progress=False)
    parsed = read(write_report(out))
    assert "failed" in parsed.text
    assert str(caught.value) in parsed.text
    assert "draws before the failure are here" in parsed.text
    assert caught.value.result.meta["seconds"] > 0
    assert sections(parsed) == ALL
    assert "complete" not in parsed.text
    read(write_report(caught.value.result, tmp_path / "page.html"))


class Stop(Exception):
    pass


@pytest.mark.parametrize("segments", [0, 2])
def test_a_run_that_is_not_finished(tmp_path, posterior, segments):
    def progress(status):
        if status.iteration and len(seen) >= segments:
            raise Stop
        seen.extend([status] * (status.iteration > 0))

    seen = []
    with pytest.raises(Stop):
        hamcmc.sample(
            posterior, "sgld", START, step_size=0.1, num_samples=10**6, out=tmp_path / "run", progress=progress,
            checkpoint_seconds=0.0,
        )  # fmt: skip
    result = hamcmc.Result.open(tmp_path / "run")
    assert (result.draws > 0) == (segments > 0)
    parsed = read(write_report(tmp_path / "run"))
    assert "stopped" in parsed.text
    assert f"iteration {result.meta['iteration']:,} of 1,000,000" in parsed.text
    assert f"hamcmc resume {tmp_path / 'run'}" in parsed.text
    assert sections(parsed) == (ALL if segments else ["Diagnostics", "Cost", "Settings"])


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("draws", [1, 2, 3, 5])
def test_few_draws(tmp_path, chains, draws):
    rng = np.random.default_rng(0)
    shape = (chains, draws)
    result = make_result(
        {"x": rng.standard_normal(shape), "same": np.full(shape, 2.0)}, stats={"grad_norm": np.zeros(shape)}
    )
    assert sections(read(write_report(result, tmp_path / "page.html"))) == ALL


def test_nothing_to_say_about_draws_that_never_move(tmp_path):
    parsed = read(write_report(make_result({"x": np.zeros((2, 50))}), tmp_path / "page.html"))
    assert "Nothing can be said yet" in parsed.text
    assert "ESS is large enough" not in parsed.text
    assert sections(parsed) == [s for s in ALL if s != "Pairs"]


def test_names_and_notes_are_escaped(tmp_path):
    evil = '<script>alert("x")</script>&$a_{$'
    result = make_result(
        {evil: np.random.default_rng(0).standard_normal((2, 50, 2))},
        stats={evil: np.ones((2, 50))},
        meta={"status": "failed", "message": evil},
        notes={evil: evil},
        sampler={"sampler": evil, "option": evil},
        versions={"hamcmc": evil},
    )
    out = tmp_path / "<b>" / "page.html"
    parsed = read(write_report(result, out))
    assert out.read_text().count("<script") == 1
    assert parsed.text.count(evil) >= 8
    assert parsed.plots[0]["rows"][0]["name"] == f"{evil}[0]"


@pytest.mark.slow
def test_many_draws_make_a_small_page(tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 20_000, 6)).astype(np.float32)
    result = make_result({"x": x}, 1 / np.arange(1, 20_001), stats={"grad_norm": x[:, :, 0] ** 2})
    out = write_report(result, tmp_path / "page.html")
    assert out.stat().st_size < 5e5
    assert sections(read(out)) == ALL


def test_many_entries(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 200, 250))
    x[:, :, 249] = x[:, :, 249].cumsum(1)  # the slowest by far
    out = write_report(make_result({"x": x, "s": rng.standard_normal((2, 200))}), tmp_path / "page.html")
    assert out.stat().st_size < 3e6
    parsed = read(out)
    shown = [h for h in parsed.headings if re.fullmatch(r"x\[\d+\]|s", h)]
    assert len(shown) == 8 + 4
    assert shown[0] == shown[8] == "x[249]"  # the worst comes first
    assert f"{251 - 200} are left out" in parsed.text
    assert f"{251 - 8} are left out" in parsed.text
    assert "all 200 rows" in parsed.text


def test_interesting_rows_begin_with_the_worst():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 200, 12))
    x[:, :, 7] = x[:, :, 7].cumsum(1)
    x[:, :, 9] = 0.0  # no ESS
    table = make_result({"x": x}).summary()
    found = page.interesting(table, 4)
    assert len(found) == 4
    assert found[0] == 7
    ess = np.fmin(table["ess_bulk"], table["ess_tail"])
    assert (np.diff(ess[found]) >= 0).all()
    assert page.interesting(table, 12)[-1] == 9
    assert page.interesting(table, 12, ["x[5]", "x[9]"])[:3] == [5, 9, 7]  # those that the verdict names


def test_weighted_correlation():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 50)), rng.integers(1, 5, 50)
    x[2] = 1.0
    found = plots.correlation(x, w)
    assert found[0, 1] == pytest.approx(np.corrcoef(np.repeat(x[:2], w, axis=1))[0, 1])
    assert np.isnan(found[0, 2])


def test_weighted_density():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000)
    grid, p = plots.kde(x, np.where(x > 0, 3.0, 1.0))
    mass = np.trapezoid(p, grid)
    assert mass == pytest.approx(1.0, abs=0.02)
    assert np.trapezoid(np.where(grid > 0, p, 0), grid) == pytest.approx(0.75, abs=0.04)
    assert plots.kde(np.full(9, 5.0), np.ones(9))[1].max() > 0


def unpack(packed: dict) -> np.ndarray:
    """As script.js does it."""
    words = np.frombuffer(base64.b64decode(packed["words"]), "<u2")
    x = packed["low"] + words * (packed["high"] - packed["low"]) / (plots.GAP - 1)
    return np.where(words == plots.GAP, np.nan, x)


def test_numbers_keep_four_digits():
    x = np.random.default_rng(0).standard_normal(1000) * 1e-3 + 5
    np.testing.assert_allclose(unpack(plots.pack(x)), x, atol=np.ptp(x) / 1e5)
    np.testing.assert_array_equal(unpack(plots.pack(np.array([np.nan, 1.0, np.inf, 3.0]))), [np.nan, 1, np.nan, 3])
    assert np.isnan(unpack(plots.pack(np.full(3, np.nan)))).all()
    assert (unpack(plots.pack(np.full(3, 7.0))) == 7).all()


@pytest.mark.parametrize("draws", [3, plots.BINS, plots.BINS + 1, 10 * plots.BINS - 7])
def test_a_trace_shows_every_extreme(draws):
    x = np.random.default_rng(0).standard_normal((2, draws))
    x[1, -1] = 9.0
    plot = plots.trace(x)
    assert [s["key"] for s in plot["series"]] == ["chain 0", "chain 1"]
    for s, values in zip(plot["series"], x):
        low, high = unpack(s["y"]), unpack(s.get("y2", s["y"]))
        assert len(low) <= plots.BINS
        few = s["x"]["step"]
        assert s["x"]["start"] == (few - 1) / 2
        for i in (0, len(low) // 2, len(low) - 1):
            part = values[i * few : (i + 1) * few]
            np.testing.assert_allclose([low[i], high[i]], [part.min(), part.max()], atol=1e-3)


def test_many_chains_are_drawn_in_part(tmp_path):
    x = np.random.default_rng(0).standard_normal((100, 30))
    parsed = read(write_report(make_result({"x": x}), tmp_path / "page.html"))
    assert f"{plots.CHAINS} of 100 chains are drawn" in parsed.text
    assert len(parsed.plots[1]["series"]) == plots.CHAINS


def test_a_cloud_is_as_dense_as_the_weights():
    x = np.random.default_rng(0).uniform(-1, 1, (2, 5000))
    plot = plots.pairs([x, -x], ["a", "b"], np.r_[np.full(2500, 3.0), np.ones(2500)])
    a, b = map(unpack, plot["columns"])
    assert len(a) == plots.CLOUD
    np.testing.assert_allclose(a, -b, atol=1e-3)
    early = np.isin(a.round(3), x[:, :2500].round(3)).mean()
    assert early > 0.7  # half of the draws of each chain, but three quarters of the weight
    assert np.mean(plot["groups"]) == pytest.approx(0.5, abs=0.01)
    assert plot["correlations"][0][1] == -1


def test_infinite_statistics_are_left_out_of_the_curve():
    x = np.linspace(1.0, 2.0, 100)[None].repeat(2, 0)
    x[:, 50:] = np.inf
    assert unpack(plots.series(x)["series"][1]["y"]).max() < 1.5
    assert plots.series(np.full((1, 5), np.nan))["series"]
    grown = plots.series(np.exp(np.linspace(0, 5, 300))[None])
    assert grown["y"]["log"]
    assert unpack(grown["series"][1]["y"])[-1] == pytest.approx(5 / np.log(10), rel=0.01)


def test_durations_and_numbers():
    assert [page.duration(s) for s in (5e-6, 0.0031, 1.5, 90, 600, 9000, np.nan)] == [
        "5 µs", "3.1 ms", "1.5 s", "90 s", "10 min", "2.5 h", "–",
    ]  # fmt: skip
    assert [page.number(v) for v in (0.1234, 12.34, 12345.6, np.nan)] == ["0.123", "12.3", "12,346", "–"]


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(hamcmc.RunError, match="is not a run"):
        write_report(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(hamcmc.RunError, match="cannot write"):
        write_report(make_result({"x": np.ones((1, 5))}), tmp_path / "file" / "page.html")


def test_the_share_of_pairs_is_of_those_that_there_are():
    draws = np.random.default_rng(0).normal(size=(2, 20, 1))
    result = make_result({"theta": draws}, stats={"pairs_accepted": np.full((2, 20), 2)}, pairs=3)
    assert "Share of pairs accepted against the draw; mean 0.667" in page.page(result)
