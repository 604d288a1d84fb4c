"""Every numbered item of the paper: where it is in the code, which command shows it, and whether its claim came out.

What was measured is read from the kept results of full runs, and judged by the rules below. Nothing of it is typed.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Rows = list[Mapping[str, Any]]
Outcome = tuple[str, str]  # the result in numbers, and whether the claim came out
NOT_YET = "not measured yet"
UNREADABLE = "its table is not understood here"
SURE = 3.0  # standard errors, beyond which a difference counts as seen
CLOSE = 0.1  # relative difference of standard deviations that still counts as "the same quality"


class Item(NamedTuple):
    """An item of the paper.

    Attributes:
        paper: its number.
        what: what it defines, or what it claims.
        files: where it is in the code.
        command: that shows or tests it.
        result: what the command compares; for a measured item, nothing.
        came: whether it came out; for a measured item, nothing.
        kept: the kept result of a measured item.
        judge: a function of that result's rows.
    """

    paper: str
    what: str
    files: tuple[str, ...]
    command: str
    result: str = ""
    came: str = ""
    kept: str = ""
    judge: Callable[[Rows], Outcome] | None = None


# --- rules ---


def number(cell: Any) -> float:
    """The first number of a cell."""
    found = re.search(r"[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+−-]?\d+)?", str(cell))
    if found is None:
        raise ValueError(f"no number in {cell!r}")
    return float(found[0].replace("−", "-").replace(",", ""))


def with_error(cell: str) -> tuple[float, float]:
    """A number and its standard error."""
    value, error = cell.split("±")
    return number(value), number(error)


def row_of(rows: Rows, **cells: str) -> Mapping[str, Any]:
    """The only row with these cells."""
    (found,) = [r for r in rows if all(str(r[k]) == v for k, v in cells.items())]
    return found


def yes(holds: bool, otherwise: str = "no") -> str:
    """Whether a claim came out."""
    return "yes" if holds else otherwise


def smallest_step(row: Mapping[str, Any]) -> str:
    """The column of the smallest step size."""
    return min((c for c in row if c.startswith("ε = ")), key=number)


def naive_is_biased(rows: Rows) -> Outcome:
    """Proposition 1, and equations 7 to 9."""
    row = row_of(rows, sampler="naive M=2")
    column = smallest_step(row)
    bias, error = with_error(row[column])
    return f"bias of the naive sampler at {column}: {row[column]}", yes(abs(bias) > SURE * error)


def hamcmc_is_unbiased(rows: Rows) -> Outcome:
    """Section 3.2: Γ vanishes, so that no bias stays."""
    row = row_of(rows, sampler="HAMCMC M=2")
    column = smallest_step(row)
    bias, error = with_error(row[column])
    holds = abs(bias) <= SURE * error
    return f"bias of HAMCMC M=2 at {column}: {row[column]}", yes(holds, "no: nearly all of the bias goes, not all")


def gaussian(rows: Rows, kind: str) -> Outcome:
    """The slopes of the theorem's bounds, where its assumption holds."""
    found = [r for r in rows if r["target"] == "Gaussian"]
    slopes = [(r["b"], r[f"{kind} slope"], number(r[f"{kind} bound's slope"])) for r in found]
    holds = [with_error(s)[0] <= bound + SURE * with_error(s)[1] for _, s, bound in slopes]
    told = "; ".join(f"b = {b}: slope {s}, bound's {bound:.2f}" for b, s, bound in slopes)
    return told, yes(all(holds), f"for {sum(holds)} of {len(holds)} exponents over this range")


def bias_vanishes(rows: Rows) -> Outcome:
    """Theorem 1 (a): rates on a Gaussian, and what is left where the curvature varies."""
    told, came = gaussian(rows, "bias")
    row = row_of(rows, target="varying curvature", sampler="HAMCMC M=2")
    column = next(c for c in row if c.startswith("bias at"))
    bias, error = with_error(row[column])
    stays = abs(bias) > SURE * error
    more = f"; varying curvature: {row[column]} at {column.removeprefix('bias at ')}"
    return told + more, f"Gaussian: {came}; varying curvature: {yes(not stays, 'no, the bias stays')}"


def mse_vanishes(rows: Rows) -> Outcome:
    """Theorem 1 (b)."""
    told, came = gaussian(rows, "MSE")
    return told, f"Gaussian: {came}"


def ridge_is_covered(rows: Rows) -> Outcome:
    """Figure 1: SGLD is stuck, pSGLD gets further, SGRLD and HAMCMC cover the whole ridge."""
    along = {r["method"]: number(r["sd along"]) for r in rows}
    further = along["pSGLD"] > along["SGLD"] * (1 + CLOSE)
    same = abs(along["HAMCMC M=2"] / along["SGRLD"] - 1) <= CLOSE
    told = "share of the ridge's sd: " + ", ".join(f"{m} {v:.2f}" for m, v in along.items())
    stuck = along["SGLD"] < (1 - CLOSE) * along["SGRLD"]
    parts = {"SGLD is stuck": stuck, "pSGLD gets further than SGLD": further, "HAMCMC is as good as SGRLD": same}
    return told, "; ".join(f"{claim}: {yes(holds)}" for claim, holds in parts.items())


def mean_is_found(rows: Rows) -> Outcome:
    """Figure 2: HAMCMC is ahead of SGLD and pSGLD, and with M = 3 similar to SGRLD."""
    last = max((c for c in rows[0] if c.startswith("at ")), key=number)
    cases: dict[tuple[str, str], dict[str, float]] = {}
    for r in rows:
        cases.setdefault((str(r.get("a_n", "")), str(r["D"])), {})[r["method"]] = number(r[last])
    ahead = sum(max(c["HAMCMC M=2"], c["HAMCMC M=3"]) < min(c["SGLD"], c["pSGLD"]) for c in cases.values())
    close = sum(c["HAMCMC M=3"] <= 2 * c["SGRLD"] for c in cases.values())
    told = "; ".join(
        f"{', '.join(filter(None, (k[0], f'D = {k[1]}')))}: " + ", ".join(f"{m} {c[m]:.2g}" for m in METHODS)
        for k, c in cases.items()
    )
    claims = f"HAMCMC ahead of SGLD and pSGLD: in {ahead} of {len(cases)}; M=3 within twice SGRLD's error: in {close}"
    return f"error {last}: {told}", f"{claims} of {len(cases)}"


METHODS = ("SGLD", "pSGLD", "SGRLD", "HAMCMC M=2", "HAMCMC M=3")


def speech_is_cleaner(rows: Rows) -> Outcome:
    """Figure 3: HAMCMC above pSGLD, and that not below SGLD."""
    sdr = {r["method"]: number(r["mean SDR"]) for r in rows if r["method"] in ("noisy", "SGLD", "pSGLD", "HAMCMC")}
    told = "mean SDR in dB: " + ", ".join(f"{m} {v:.2f}" for m, v in sdr.items())
    best, order = sdr["HAMCMC"] > max(sdr["pSGLD"], sdr["SGLD"]), sdr["pSGLD"] >= sdr["SGLD"]
    return told, f"HAMCMC above both: {yes(best)}; pSGLD not below SGLD: {yes(order)}"


def parts_are_diagonals(rows: Rows) -> Outcome:
    """Figure 4: each part has every column block once, and blocks of a part can be worked on at the same time."""
    blocks = [[int(c) for c in r["column blocks on devices 1 … 4"].split()] for r in rows]
    holds = all(sorted(line) == [1, 2, 3, 4] for line in (*blocks, *map(list, zip(*blocks))))
    return f"parts of {', '.join(str(r['ratings']) for r in rows)} ratings", yes(holds)


def ratings_are_predicted(rows: Rows) -> Outcome:
    """Figure 5: HAMCMC converges faster than DSGLD and pSGLD, at nearly the same cost."""
    first = {}
    for r in rows:  # the first row of each method is the one on a single process
        first.setdefault(r["method"], r)
    ours, others = first["HAMCMC"], [first["DSGLD"], first["pSGLD"]]
    marks = sorted((c for c in ours if c.startswith("at ")), key=number)
    ahead = [c for c in marks if number(ours[c]) < min(number(o[c]) for o in others)]
    told = "; ".join(f"{c}: " + ", ".join(f"{r['method']} {r[c]}" for r in (*others, ours)) for c in marks)
    cost = number(ours["ms"]) / number(first["DSGLD"]["ms"])
    came = f"ahead {', '.join(ahead)}" if ahead else "never ahead"
    return f"RMSE {told}", f"{came}; an iteration takes {cost:.1f} times DSGLD's"


def costs_like_sgld(rows: Rows) -> Outcome:
    """Sections 1 and 5: cost linear in D, as SGLD's is."""
    column = next(c for c in rows[0] if c.startswith("SGLD"))
    found = {int(number(r["D"])): number(r[column]) for r in rows if int(number(r["M"])) == 2}
    told = "time of HAMCMC M=2 over SGLD's: " + ", ".join(f"{v:.2f} at D = {d:,}" for d, v in found.items())
    return told, yes(max(found.values()) < 2.5)


def costs_nearly_the_same(rows: Rows) -> Outcome:
    """Section 5: "keeping the computational cost almost the same" as that of SGLD."""
    told, _ = costs_like_sgld(rows)
    found = [number(v) for v in re.findall(r"[\d.]+(?= at D)", told)]
    return told, yes(max(found) <= 1 + 2 * CLOSE, f"no: {min(found):.1f} to {max(found):.1f} times SGLD's")


# --- the paper ---

CURVATURE, CHAINS = "src/hamcmc/samplers/curvature.py", "src/hamcmc/stable/chains.py"
POSTERIOR, SGLD = "src/hamcmc/target/posterior.py", "src/hamcmc/samplers/sgld.py"
NAIVE, HAMCMC = "src/hamcmc/samplers/naive.py", "src/hamcmc/samplers/hamcmc.py"
LINEAR, STABLE = "src/hamcmc/target/linear_gaussian.py", "src/hamcmc/stable/model.py"
PARTITION, IMPULSES = "src/hamcmc/factorization/partition.py", "src/hamcmc/stable/impulses.py"


def erratum(n: int) -> str:
    """A link to a note on the paper."""
    return f"[erratum {n}](errata.md)"


def test(path: str) -> str:
    """The command that runs a test."""
    return f"pytest tests/{path}"


def shown(name: str) -> tuple[str, str]:
    """A reproduction's module and its command."""
    return f"src/hamcmc/paper/{name}.py", f"hamcmc reproduce {name}"


def measured(paper: str, what: str, name: str, judge: Callable[[Rows], Outcome], *files: str) -> Item:
    """An item that a reproduction measures."""
    module, command = shown(name)
    return Item(paper, what, (*files, module), command, kept=f"reproductions/{name}", judge=judge)


ITEMS = (
    Item(
        *("Section 1", "dense curvature at a cost linear in D", (CURVATURE, HAMCMC), "python -m benchmarks hamcmc"),
        kept="hamcmc",
        judge=costs_like_sgld,
    ),
    Item(
        *("Section 2", "the posterior and its potential energy", (POSTERIOR,), test("target/test_posterior.py")),
        *("a Gaussian's density and gradient", "yes"),
    ),
    Item(
        *("Equation 1", "U(θ), minus the logarithm of the posterior", (POSTERIOR,), test("target/test_posterior.py")),
        *("a Gaussian's density and gradient", "yes"),
    ),
    Item(
        *("Equation 2", "Ũ(θ), unbiased, with N/N_Ω", ("src/hamcmc/target/protocol.py",)),
        *(test("target/test_minibatch.py"), "minibatches of all kinds against all data", "yes"),
    ),
    Item(
        *("Section 2.1", "SGLD", (SGLD,), test("samplers/test_exact.py"), "mean and covariance of a posterior", "yes"),
    ),
    Item(
        *("Equation 3", "θ ← θ − ε∇Ũ + N(0, 2ε I)", (SGLD,), test("samplers/test_exact.py")),
        *("mean and covariance of a posterior", "yes"),
    ),
    Item(
        *("Equation 4", "the Langevin diffusion", (SGLD,), test("samplers/test_exact.py")),
        *("its stationary law, as ε → 0", "yes"),
    ),
    Item(
        *("Section 2.2", "L-BFGS", (CURVATURE,), test("samplers/test_curvature.py"), "dense BFGS"),
        f"yes; the number of pairs corrected, {erratum(3)}",
    ),
    Item(
        *("Equation 5", "the quasi-Newton step H∇U", (CURVATURE,), test("samplers/test_curvature.py")),
        *("dense BFGS", "yes"),
    ),
    Item(
        *("Equation 6", "the recursion for H", (CURVATURE,), test("samplers/test_curvature.py"), "dense BFGS"),
        f"yes; the number of pairs corrected, {erratum(3)}",
    ),
    measured("Section 3", "quasi-Newton ideas need care in MCMC", "proposition", naive_is_biased, NAIVE, HAMCMC),
    measured("Section 3.1", "the naive algorithm misses the target", "proposition", naive_is_biased, NAIVE),
    measured("Equation 7", "the naive sampler", "proposition", naive_is_biased, NAIVE),
    measured("Proposition 1", "the naive sampler is biased unless Γ = 0", "proposition", naive_is_biased, NAIVE),
    measured("Equation 8", "its diffusion, without Γ", "proposition", naive_is_biased, NAIVE),
    Item(
        *("Equation 9", "Γ_i = Σ_j ∂H_ij/∂θ_j", ("src/hamcmc/samplers/psgld.py", "src/hamcmc/samplers/sgrld.py")),
        *(test("samplers/test_exact.py"), "moments on a target whose curvature varies"),
        f"yes; its sign in the drift corrected, {erratum(2)}",
    ),
    measured("Section 3.2", "HAMCMC needs no Γ", "proposition", hamcmc_is_unbiased, HAMCMC),
    Item(
        *("Equation 10", "θ_t from θ_{t−M}, with H of the other positions", (HAMCMC,)),
        *(test("samplers/test_reference.py"), "a plain program of the printed formulas"),
        f"yes; M interleaved chains, {erratum(4)}",
    ),
    Item(
        *("Algorithm 1", "HAMCMC", (HAMCMC,), test("samplers/test_reference.py")),
        *("a plain program of the printed formulas", f"yes; a large λ does not bound H, {erratum(7)}"),
    ),
    Item(
        *("Equation 11", "the square root S of H", (CURVATURE,), test("samplers/test_curvature.py"), "S Sᵀ = H"),
        f"not as printed: two misprints, {erratum(1)}",
    ),
    measured("Section 3.3", "bias and MSE vanish as T → ∞", "theorem", bias_vanishes, HAMCMC),
    Item(
        *("Equation 12", "ĥ = Σεh/Σε", ("src/hamcmc/paper/runs.py", "src/hamcmc/diagnostics/summaries.py")),
        *(test("paper/test_numbers.py"), "SGLD's exact expectation at every T", "yes"),
    ),
    measured("Theorem 1 (a)", "bias O(1/L + Y/L)", "theorem", bias_vanishes, HAMCMC),
    measured("Theorem 1 (b)", "MSE O(Y/L² + 1/L + Y²/L²)", "theorem", mse_vanishes, HAMCMC),
    measured("Section 4", "HAMCMC is ahead of SGLD and pSGLD", "fig2", mean_is_found, HAMCMC),
    measured("Section 4.1", "linear Gaussian model: error of the mean", "fig2", mean_is_found, LINEAR),
    Item(
        *("Equation 13", "θ ~ N(0, I), x ~ N(aᵀθ, σ²)", (LINEAR,), test("target/test_posterior.py")),
        *("its density and gradient", "yes"),
    ),
    measured("Figure 1", "samples on a thin ridge", "fig1", ridge_is_covered, LINEAR),
    measured("Figure 2", "error of the posterior mean, D = 10 and 100", "fig2", mean_is_found, LINEAR),
    measured("Section 4.2", "αMF: HAMCMC cleans speech best", "fig3", speech_is_cleaner, CHAINS),
    Item(
        *("Equation 14", "W and H generalized gamma, X symmetric α-stable", (STABLE,)),
        *(test("stable/test_separation.py"), "quadrature of the posteriors of W, H and Φ", "yes"),
    ),
    Item(
        *("Equation 15", "X normal given impulses Φ", (IMPULSES, "src/hamcmc/stable/distributions.py")),
        *(test("stable/test_distributions.py"), "the characteristic function of X"),
        f"not as printed: the scale of Φ, {erratum(8)}",
    ),
    measured("Figure 3", "SDR of cleaned speech", "fig3", speech_is_cleaner, CHAINS),
    measured("Section 4.3", "distributed HAMCMC converges faster", "fig5", ratings_are_predicted, PARTITION),
    measured("Figure 4", "the partition into parts of disjoint blocks", "fig4", parts_are_diagonals, PARTITION),
    measured("Figure 5", "RMSE on MovieLens 1M by the clock", "fig5", ratings_are_predicted, PARTITION),
    Item(
        *("Section 5", "nearly the cost of SGLD", (HAMCMC,), "python -m benchmarks hamcmc"),
        kept="hamcmc",
        judge=costs_nearly_the_same,
    ),
)


def table(full: Callable[[str, Path], dict[str, Any] | None], results: Path) -> list[dict[str, str]]:
    """A row for each item. `full` reads a kept result of a full run, or returns None."""
    return [
        {
            "paper": item.paper,
            "what it says": item.what,
            "in the code": ", ".join(f"`{f}`" for f in item.files),
            "command": f"`{item.command}`",
            **dict(zip(("result", "did it come out"), outcome(item, full(item.kept, results) if item.kept else None))),
        }
        for item in ITEMS
    ]


def outcome(item: Item, kept: Mapping[str, Any] | None) -> Outcome:
    """The last two cells of an item."""
    if item.judge is None:
        return item.result, item.came
    if kept is None:
        return NOT_YET, NOT_YET
    try:
        return item.judge(kept["tables"][0]["rows"])
    except (KeyError, ValueError, IndexError, StopIteration):
        return UNREADABLE, UNREADABLE  # and a test fails, but not the whole page
