// Intervals of many quantities, one below the other: drawn, pointed at and read.

// A line for the middle 90 %, a thick one for the middle half, a dot for the median; a cross for what was observed.
function drawForest(plot, c, width, height) {
  const { rows, x, zero } = plot.spec, bottom = height - (x.label ? 34 : 20), top = 4;
  const step = (bottom - top) / rows.length;
  const most = 0.4 * width, full = Math.max(...rows.map((r) => c.measureText(r.name).width));
  const left = Math.min(full, most) + 12, right = width - 12;
  const ends = rows.flatMap((r) => [...r.at, ...(r.seen === undefined ? [] : [r.seen])]).filter(Number.isFinite);
  let [x0, x1] = x.range || [Math.min(...ends), Math.max(...ends)];
  if (zero && !x.range) [x0, x1] = [Math.min(0, x0), Math.max(0, x1)];
  const margin = 0.04 * (x1 - x0) || 1;
  [x0, x1] = [x0 - margin, x1 + margin];
  const px = (v) => left + ((v - x0) / (x1 - x0)) * (right - left);
  plot.lines = { top, step, px };
  c.textBaseline = "top";
  c.textAlign = "center";
  let last = -Infinity;
  for (const v of ticks(x0, x1, Math.max(2, (right - left) / 80))) {
    c.strokeStyle = plot.ink.line;
    line(c, px(v), top, px(v), bottom);
    const words = text(v, 6), half = c.measureText(words).width / 2, at = Math.min(px(v), width - half - 1);
    if (at - half < last + 8) continue;
    last = at + half;
    c.fillStyle = plot.ink.soft;
    c.fillText(words, at, bottom + 5);
  }
  if (x.label) c.fillText(x.label, (left + right) / 2, height - 13);
  if (x0 < 0 && x1 > 0) {
    c.strokeStyle = plot.ink.faint;
    line(c, px(0), top, px(0), bottom);
  }
  rows.forEach((row, i) => {
    const y = top + (i + 0.5) * step, [low, first, median, third, high] = row.at.map(px);
    if (plot.cursor?.row === i) {
      c.fillStyle = plot.ink.line;
      c.fillRect(0, y - step / 2, width, step);
    }
    c.fillStyle = row.bad ? colour("--bad") : plot.ink.ink;
    c.textAlign = "right";
    c.textBaseline = "middle";
    c.fillText(shortened(c, row.name, most), left - 8, y);
    c.strokeStyle = c.fillStyle = row.bad ? colour("--bad") : chainColour(0);
    c.lineWidth = 1.4;
    line(c, low, y, high, y);
    c.lineWidth = 4;
    line(c, first, y, third, y);
    c.lineWidth = 1;
    c.fillStyle = plot.ink.ink;
    dot(c, median, y, Math.min(3.5, step / 4));
    if (row.seen === undefined) return;
    c.strokeStyle = chainColour(1);
    c.lineWidth = 2;
    for (const d of [-4, 4]) line(c, px(row.seen) - 4, y - d, px(row.seen) + 4, y + d);
    c.lineWidth = 1;
  });
}

function shortened(c, words, most) {
  if (c.measureText(words).width <= most) return words;
  let kept = words.length;
  while (kept > 4 && c.measureText(`${words.slice(0, kept - 4)}…${words.slice(-3)}`).width > most) kept--;
  return `${words.slice(0, kept - 4)}…${words.slice(-3)}`;
}

// What the row at the cursor says: a head, lines, and where to put them.
function rowAt(plot) {
  const row = plot.spec.rows[plot.cursor.row], [low, first, median, third, high] = row.at.map((v) => text(v));
  const said = [["median", median, null], ["middle half", `${first} to ${third}`, null],
                ["middle 90 %", `${low} to ${high}`, null], ...Object.entries(row.more || {}).map(([k, v]) => [k, v, null])];
  if (row.seen !== undefined) said.push(["observed", text(row.seen), null]);
  return [row.name, said, plot.lines.px(row.at[4])];
}
