"""Figure 4 of the paper: the blocks of a matrix and its parts, on a bare grid and on ratings."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from hamcmc._types import Record
from hamcmc.factorization.partition import Partition, partition
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.common import Reproduction, finish, styled

TITLE = "Figure 4: a matrix in 4 × 4 blocks, and its four parts"
BLOCKS = 4
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7")  # of the parts


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run. A full one has the shape of MovieLens 1M."""
    users, items, ratings = (1200, 800, 100_000) if quick else (6040, 3706, 1_000_209)
    return {"users": users, "items": items, "ratings": ratings, "blocks": BLOCKS}


def part_of(b: int, c: int, blocks: int = BLOCKS) -> int:
    """The part that block (b, c) belongs to: its cyclic distance from the diagonal."""
    return (c - b) % blocks


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Draw the partition on a bare grid and on synthetic ratings with the shape of MovieLens 1M."""
    asked = settings(quick)
    progress(Status(0.0, "ratings"))
    made = movielens_like(asked["users"], asked["items"], asked["ratings"], seed=seed).ratings
    progress(Status(0.5, "partition"))
    p = partition(made.row, made.column, (asked["users"], asked["items"]), BLOCKS, seed)
    probability = p.parts / p.parts.sum()
    device = np.arange(BLOCKS)
    rows = []
    for part in range(BLOCKS):
        each = p.sizes[device, (device + part) % BLOCKS]
        rows.append(
            [
                part + 1,
                " ".join(str(c + 1) for c in (device + part) % BLOCKS),
                f"{p.parts[part]:,}",
                f"{probability[part]:.4f}",
                f"{each.min():,}",
                f"{each.max():,}",
            ]
        )
    shares = p.sizes.sum(1) / p.sizes.sum()
    return finish(
        out,
        "fig4",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["part", "column blocks on devices 1 … 4", "ratings", "probability", "fewest in a block", "most"],
        rows=rows,
        figures={"fig4": _draw(p, made.size)},
        notes=[
            "Device b keeps the ratings and the factors of row block b; the factors of column blocks travel. No two "
            "blocks of a part share a row or a column, so that all devices can work at the same time.",
            f"The ratings are synthetic: {made.size:,} of {asked['users']:,} × {asked['items']:,}, with heavy tails as "
            f"MovieLens has them. Imbalance {p.imbalance:.4f} (the busiest block of a part over the mean, 1 is "
            f"perfect); ratings of a device between {100 * shares.min():.2f} and {100 * shares.max():.2f} %.",
        ],
        more={
            "sizes": p.sizes,
            "parts": p.parts,
            "probability": probability,
            "imbalance": p.imbalance,
            "data": "synthetic",
        },
    )


@styled
def _draw(p: Partition, size: int) -> Figure:
    fig = Figure(layout="constrained", figsize=(8.5, 4.8))
    grid, ratings = fig.subplots(1, 2)
    B = p.blocks
    for axes, text in ((grid, lambda b, c: str(b + 1)), (ratings, lambda b, c: f"{p.sizes[b, c]:,}")):
        for b in range(B):
            for c in range(B):
                colour = COLOURS[part_of(b, c, B)]
                axes.add_patch(Rectangle((c, b), 1, 1, facecolor=colour, edgecolor="white", lw=2))
                axes.text(c + 0.5, b + 0.5, text(b, c), ha="center", va="center", fontsize=14 if axes is grid else 9)
        axes.set(xlim=(0, B), ylim=(B, 0), aspect="equal", ylabel="row block of W")
        axes.set_xlabel("column block of H")
        axes.set_xticks(np.arange(B) + 0.5, [str(k + 1) for k in range(B)])
        axes.set_yticks(np.arange(B) + 0.5, [str(k + 1) for k in range(B)])
        axes.tick_params(length=0)
        axes.grid(False)
    grid.set_title("number: the device that keeps the block")
    rows, columns = len(p.rows.block), len(p.columns.block)
    ratings.set_title(
        f"number: its ratings, of {size:,}\nsynthetic, {rows:,} × {columns:,}; imbalance {p.imbalance:.3f}"
    )
    share = p.parts / p.parts.sum()
    labels = [Patch(facecolor=COLOURS[k], label=f"part {k + 1}, probability {share[k]:.4f}") for k in range(B)]
    fig.legend(handles=labels, loc="outside lower center", ncols=2)
    return fig
