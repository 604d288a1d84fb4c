// The plots of a page, on canvases that follow its light or dark colours. The page's tables need none of it.
"use strict";

const GAP = 65535; // stands for what is not a number
const DASHES = [[], [6, 3], [2, 2.5], [8, 3, 2, 3]]; // tell series of one colour apart
const hidden = new Set(); // keys of the series that are switched off, in all plots
let lit = null; // the key whose switch is pointed at or focused: its series stand out
const plots = new Map(); // figure -> Plot

// --- numbers ---

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function unpack({ low, high, words }) {
  const raw = new Uint16Array(bytes(words).buffer), unit = (high - low) / (GAP - 1);
  return Float64Array.from(raw, (w) => (w === GAP ? NaN : low + w * unit));
}

function places(x, n) {
  return Array.isArray(x) ? Float64Array.from(x) : Float64Array.from({ length: n }, (_, i) => x.start + i * x.step);
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function text(v, digits = 4) {
  if (!Number.isFinite(v)) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e7))
    return v.toExponential(digits - 2).replace("e+", "e").replaceAll("-", "−");
  const rounded = Number(v.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1)))));
  return rounded.toLocaleString("en", { maximumFractionDigits: 8 }).replace("-", "−");
}

// Round numbers between two ends, about as many as asked for; on an axis of logarithms those of round numbers.
function ticks(low, high, count, { integer = false, log = false } = {}) {
  if (log && high - low < 3) {
    for (const digits of [[1, 2, 5], [1, 3], [1]]) {
      const found = [];
      for (let p = Math.floor(low); p <= high; p++) for (const m of digits) found.push(p + Math.log10(m));
      const inside = found.filter((v) => v >= low && v <= high);
      if (inside.length > 1 && inside.length <= count + 3) return inside;
    }
  }
  const rough = (0.7 * (high - low)) / count, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  if (integer || (log && high - low >= 3)) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

// --- plots ---

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const chainColour = (i) => colour(`--chain-${i % 6}`);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

class Plot {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".box");
    this.canvas = make("canvas", { tabindex: 0, role: "img" });
    this.tip = make("div", { class: "tip", role: "status", hidden: "" });
    this.box.replaceChildren(this.canvas, this.tip);
    this.cursor = null;
    this.linked = null; // the time that is pointed at in a plot beside this one
    this.canvas.addEventListener("pointermove", (e) => this.point(e));
    this.canvas.addEventListener("pointerdown", (e) => this.point(e));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    sizes.observe(this.box);
    views.observe(this.box);
    this.read();
  }

  read() {
    this.source = this.figure.dataset.plot;
    const spec = JSON.parse(this.source);
    this.spec = spec;
    this.canvas.setAttribute("aria-label", `${this.figure.getAttribute("aria-label")}. Arrow keys read values.`);
    for (const s of spec.series || []) {
      s.y = unpack(s.y);
      s.y2 = s.y2 && unpack(s.y2);
      s.x = places(s.x, s.y.length);
    }
    if (spec.columns) {
      spec.columns = spec.columns.map(unpack);
      spec.densities = spec.densities.map(({ x, y }) => ({ x, y: unpack(y) }));
    }
    if (spec.image) this.load();
    this.redraw();
  }

  shown() { return (this.spec.series || []).filter((s) => !hidden.has(s.key)); }

  redraw() {
    this.stale = true;
    if ((this.seen || this.cursor) && !this.waiting) {
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    }
  }

  draw() {
    const width = this.box.clientWidth, height = this.box.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width || !height) return;
    this.stale = false;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = "11px system-ui, sans-serif";
    c.lineJoin = "round";
    this.ink = { ink: colour("--ink"), faint: colour("--faint"), line: colour("--line"), soft: colour("--soft") };
    if (this.spec.columns) this.drawPairs(c, width, height);
    else if (this.spec.rows) drawForest(this, c, width, height);
    else this.drawAxes(c, width, height);
    this.tell();
  }

  // The range of an axis: the given one, or that of what is switched on.
  range(name) {
    const { range, zero } = this.spec[name];
    if (range) return range;
    let low = Infinity, high = -Infinity;
    const series = name === "x" ? this.spec.series : this.shown();
    for (const s of series) for (const values of name === "x" ? [s.x] : [s.y, s.y2 || []]) for (const v of values) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
    if (!(low <= high)) return [0, 1];
    if (zero) return [Math.min(0, low), high * 1.06 || 1];
    const margin = 0.05 * (high - low) || Math.abs(high) * 0.05 || 1;
    return [low - margin, high + margin];
  }

  drawAxes(c, width, height) {
    const { x, y, image } = this.spec, [x0, x1] = x.shown || this.range("x"), [y0, y1] = y.shown || this.range("y");
    const label = (axis, v) => text(axis.log ? 10 ** v : v, axis.log ? 3 : 6);
    const below = x.hidden ? 6 : x.label ? 34 : 20, foot = this.spec.bar ? 12 : 0;
    const tall = Math.max(3, Math.round(height / 50)), ys = y.hidden ? [] : ticks(y0, y1, tall, y);
    const widest = y.width || Math.max(...ys.map((v) => c.measureText(label(y, v)).width), 0);
    const marginLeft = y.hidden ? 8 : widest + (y.label ? 24 : 10);
    const area = { left: marginLeft, top: 8, right: width - (image ? 62 : 12), bottom: height - below - foot };
    const px = (v) => area.left + ((v - x0) / (x1 - x0)) * (area.right - area.left);
    const py = (v) => area.bottom - ((v - y0) / (y1 - y0)) * (area.bottom - area.top);
    this.area = area;
    this.place = { px, py, x: (p) => x0 + ((p - area.left) / (area.right - area.left)) * (x1 - x0),
                   y: (p) => y0 + ((area.bottom - p) / (area.bottom - area.top)) * (y1 - y0) };

    c.fillStyle = this.ink.soft;
    c.strokeStyle = this.ink.line;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const v of ys) {
      if (!image) line(c, area.left, py(v), area.right, py(v));
      c.fillText(label(y, v), area.left - 6, py(v));
    }
    c.textAlign = "center";
    c.textBaseline = "top";
    let last = -Infinity;
    const xs = x.hidden ? [] : ticks(x0, x1, Math.max(2, (area.right - area.left) / 70), x);
    for (const v of xs) {
      const words = label(x, v), half = c.measureText(words).width / 2, at = Math.min(px(v), width - half - 1);
      if (at - half < last + 8) continue;
      last = at + half;
      c.fillText(words, at, area.bottom + foot + 5);
    }
    c.strokeStyle = this.ink.faint;
    line(c, area.left, area.bottom + foot, area.right, area.bottom + foot);
    if (x.label && !x.hidden) c.fillText(x.label, (area.left + area.right) / 2, height - 13);
    if (y.label && !y.hidden) {
      c.save();
      c.translate(10, (area.top + area.bottom) / 2);
      c.rotate(-Math.PI / 2);
      c.textBaseline = "middle";
      c.fillText(y.label, 0, 0);
      c.restore();
    }
    if (image) this.drawImage(c);
    c.save();
    c.beginPath();
    c.rect(area.left - 3, area.top - 4, area.right - area.left + 6, area.bottom - area.top + foot + 8);
    c.clip();
    for (const [gx0, gy0, gx1, gy1] of this.spec.guides || []) {
      c.strokeStyle = this.ink.faint;
      c.setLineDash([2, 3]);
      line(c, px(gx0), gy0 === null ? area.top : py(gy0), px(gx1), gy1 === null ? area.bottom : py(gy1));
      c.setLineDash([]);
    }
    const series = this.shown(), opacity = series.filter((s) => s.key).length > 4 ? 0.55 : 0.9;
    for (const s of series) drawSeries(c, s, px, py, area, dimmed(s.key) ? 0.1 : s.faint ? 0.35 : opacity);
    if (this.spec.bar) {
      const [low, median, high] = this.spec.bar.map(px), at = area.bottom + 6;
      c.strokeStyle = c.fillStyle = this.ink.ink;
      c.lineWidth = 3;
      line(c, low, at, high, at);
      dot(c, median, at, 4);
    }
    this.drawCursor(c);
    c.restore();
  }

  drawCursor(c) {
    const { px, py } = this.place, { left, right, top, bottom } = this.area;
    if (this.heard !== undefined) { // where a player is
      c.lineWidth = 2;
      c.strokeStyle = this.spec.image ? "#3df" : this.ink.ink; // no colour of the picture
      line(c, px(this.heard), top, px(this.heard), bottom);
    }
    c.lineWidth = 1;
    c.strokeStyle = this.spec.image ? "#3df" : this.ink.soft;
    if (this.linked !== null && !this.cursor) line(c, px(this.linked), top, px(this.linked), bottom);
    if (!this.cursor) return;
    line(c, px(this.cursor.x), top, px(this.cursor.x), bottom);
    if (this.spec.image) line(c, left, py(this.cursor.y), right, py(this.cursor.y));
    for (const s of this.shown()) {
      const i = nearest(s.x, this.cursor.x);
      if (s.kind !== "line" || !Number.isFinite(s.y[i])) continue;
      c.fillStyle = chainColour(s.colour);
      dot(c, px(s.x[i]), py(s.y[i]), 3.5);
    }
  }

  // --- a picture: its colours say its values ---

  load() {
    const img = this.figure.querySelector("img");
    img.decode().then(() => {
      const canvas = make("canvas", { width: img.naturalWidth, height: img.naturalHeight });
      const c = canvas.getContext("2d");
      c.drawImage(img, 0, 0);
      const palette = bytes(this.spec.image.palette), found = new Map();
      for (let i = 0; i < 256; i++) found.set(palette.slice(3 * i, 3 * i + 3).join(), i);
      this.picture = { canvas, palette, found, pixels: c.getImageData(0, 0, canvas.width, canvas.height).data };
      this.redraw();
    });
  }

  drawImage(c) {
    if (!this.picture) return;
    const { left, right, top, bottom } = this.area, { low, high, label } = this.spec.image;
    const { px, py } = this.place, [x0, x1] = this.spec.x.range, [y0, y1] = this.spec.y.range;
    c.drawImage(this.picture.canvas, px(x0), py(y1), px(x1) - px(x0), py(y0) - py(y1));
    const at = (i) => bottom - (i / 256) * (bottom - top), palette = this.picture.palette;
    for (let i = 0; i < 256; i++) {
      c.fillStyle = `rgb(${palette.slice(3 * i, 3 * i + 3).join()})`;
      c.fillRect(right + 12, at(i + 1), 9, at(i) - at(i + 1) + 1);
    }
    c.fillStyle = this.ink.soft;
    c.textAlign = "left";
    c.textBaseline = "middle";
    for (const v of ticks(low, high, 4)) c.fillText(text(v), right + 25, at((256 * (v - low)) / (high - low)));
    c.textBaseline = "top";
    c.fillText(label, right + 12, bottom + 5);
  }

  valueAt({ x, y }) {
    if (!this.picture) return NaN;
    const { canvas, pixels, found } = this.picture, [x0, x1] = this.spec.x.range, [y0, y1] = this.spec.y.range;
    const cell = (share, n) => Math.min(n - 1, Math.max(0, Math.floor(share * n)));
    const column = cell((x - x0) / (x1 - x0), canvas.width), row = cell((y1 - y) / (y1 - y0), canvas.height);
    const at = 4 * (row * canvas.width + column), { low, high } = this.spec.image;
    return low + (found.get(pixels.slice(at, at + 3).join()) / 255) * (high - low);
  }

  // --- each parameter against each other ---

  drawPairs(c, width, height) {
    const { columns, names, groups, keys, densities, correlations } = this.spec, k = columns.length;
    const margin = 18, size = (Math.min(width, height) - margin) / k, gap = Math.min(8, size / 10);
    const ends = columns.map((x) => [x.reduce((a, b) => Math.min(a, b)), x.reduce((a, b) => Math.max(a, b))]);
    const cell = (i, j) => ({ left: margin + j * size + gap / 2, top: i * size + gap / 2, size: size - gap });
    const at = ([low, high], v) => (high > low ? 0.04 + 0.92 * ((v - low) / (high - low)) : 0.5);
    this.cells = { k, cell, at, ends };
    const radius = Math.min(groups.length > 300 ? 1.1 : 1.8, size / 90);
    for (let i = 0; i < k; i++) for (let j = 0; j < k; j++) {
      const { left, top, size: side } = cell(i, j);
      if (j > i) {
        const r = correlations[i][j];
        c.fillStyle = this.ink.ink;
        c.textAlign = "center";
        c.textBaseline = "middle";
        c.font = `${Math.min(side / 3.2, 11 + 6 * Math.abs(r || 0))}px system-ui, sans-serif`;
        const words = r === null ? "–" : (Math.round(100 * r) / 100 + 0).toFixed(2).replace("-", "−");
        c.fillText(words, left + side / 2, top + side / 2);
        c.font = "11px system-ui, sans-serif";
        continue;
      }
      c.strokeStyle = this.ink.line;
      c.lineWidth = 1;
      c.strokeRect(left, top, side, side);
      if (i === j) {
        const { x, y } = densities[i], most = y.reduce((a, b) => Math.max(a, b));
        const along = (v) => left + side * Math.min(1, Math.max(0, at(ends[i], v)));
        c.beginPath();
        x.forEach((v, n) => c.lineTo(along(v), top + side * (1 - (0.9 * y[n]) / most)));
        c.strokeStyle = c.fillStyle = chainColour(0);
        c.stroke();
        c.globalAlpha = 0.2;
        c.lineTo(along(x[x.length - 1]), top + side);
        c.lineTo(along(x[0]), top + side);
        c.fill();
        c.globalAlpha = 1;
        continue;
      }
      c.globalAlpha = groups.length > 300 ? 0.45 : 0.6;
      const colours = [0, 1, 2, 3, 4, 5].map(chainColour);
      for (let n = 0; n < groups.length; n++) {
        const key = keys[groups[n]];
        if (hidden.has(key) || dimmed(key)) continue;
        c.fillStyle = colours[groups[n] % 6];
        dot(c, left + side * at(ends[j], columns[j][n]), top + side * (1 - at(ends[i], columns[i][n])), radius);
      }
      c.globalAlpha = 1;
    }
    c.fillStyle = this.ink.soft;
    c.textAlign = "center";
    const most = Math.floor(size / 6.5);
    const short = (n) => (n.length > most ? `${n.slice(0, Math.max(1, most - 4))}…${n.slice(-3)}` : n);
    for (let i = 0; i < k; i++) {
      c.textBaseline = "bottom";
      c.fillText(short(names[i]), margin + (i + 0.5) * size, k * size + margin - 2);
      c.save();
      c.translate(7, (i + 0.5) * size);
      c.rotate(-Math.PI / 2);
      c.textBaseline = "middle";
      c.fillText(short(names[i]), 0, 0);
      c.restore();
    }
    if (!this.cursor) return;
    const { left: l, top: t, size: s } = cell(this.cursor.i, this.cursor.j);
    c.strokeStyle = this.ink.ink;
    c.strokeRect(l, t, s, s);
  }

  // --- reading values ---

  point(event) {
    if (this.stale) this.draw(); // places come from the drawing
    const x = event.offsetX, y = event.offsetY;
    if (this.lines) {
      const row = Math.floor((y - this.lines.top) / this.lines.step);
      this.cursor = row >= 0 && row < this.spec.rows.length ? { row } : null;
    } else if (this.cells) {
      const { k, cell } = this.cells, { size, left: l } = cell(0, 0), step = cell(0, 1 % k).left - l || size;
      const j = Math.floor((x - l) / step), i = Math.floor(y / step);
      this.cursor = i >= 0 && j >= 0 && i < k && j < k ? { i, j } : null;
    } else if (this.area) {
      const { left, right, top, bottom } = this.area;
      const inside = x >= left - 8 && x <= right + 8;
      const clamp = (v, a, b) => Math.min(b, Math.max(a, v));
      this.cursor = inside ? { x: this.place.x(clamp(x, left, right)), y: this.place.y(clamp(y, top, bottom)) } : null;
    }
    this.link();
    this.redraw();
  }

  leave() {
    this.cursor = null;
    this.link();
    this.redraw();
  }

  // Plots that share an axis show the place that is pointed at in one of them.
  link() {
    if (!this.spec.shared) return;
    for (const other of plots.values()) {
      if (other === this || other.spec.shared !== this.spec.shared) continue;
      other.linked = this.cursor ? this.cursor.x : null;
      other.redraw();
    }
  }

  key(event) {
    const steps = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Home: [-1e9, 0], End: [1e9, 0],
    };
    if (event.key === "Escape") return this.leave();
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    const [dx, dy] = steps[event.key].map((s) => s * (event.shiftKey ? 10 : 1));
    if (dy && !this.cells && !this.lines && !this.spec.image) return; // scrolls the page
    event.preventDefault();
    if (this.stale) this.draw();
    const clamp = (v, a, b) => Math.min(b, Math.max(a, v));
    if (this.lines) {
      const last = this.spec.rows.length - 1, step = dx - dy;
      const now = this.cursor ? this.cursor.row : step > 0 ? -1 : last + 1;
      this.cursor = { row: clamp(now + step, 0, last) };
    } else if (this.cells) {
      const { i, j } = this.cursor || { i: 0, j: 0 }, last = this.cells.k - 1;
      this.cursor = this.cursor ? { i: clamp(i - dy, 0, last), j: clamp(j + dx, 0, last) } : { i, j };
    } else if (this.spec.image) {
      const [x0, x1] = this.range("x"), [y0, y1] = this.range("y");
      const { x, y } = this.cursor || { x: x0, y: (y0 + y1) / 2 };
      this.cursor = { x: clamp(x + (dx * (x1 - x0)) / 100, x0, x1), y: clamp(y + (dy * (y1 - y0)) / 50, y0, y1) };
    } else {
      const longest = this.shown().reduce((a, s) => (s.x.length > a.length ? s.x : a), []);
      if (!longest.length) return;
      const from = this.cursor ? nearest(longest, this.cursor.x) : (longest.length >> 1) - Math.sign(dx);
      this.cursor = { x: longest[clamp(from + dx, 0, longest.length - 1)], y: 0 };
    }
    this.link();
    this.redraw();
  }

  // The values at the cursor, beside it.
  tell() {
    this.tip.hidden = !this.cursor;
    if (!this.cursor) return;
    const [head, rows, at] = this.lines ? rowAt(this)
      : this.cells ? this.pairAt() : this.spec.image ? this.pointAt() : this.valuesAt();
    const most = 8, list = rows.slice(0, most).map(([name, value, i]) => {
      const mark = make("i");
      if (i !== null) mark.style.background = `var(--chain-${i})`;
      return make("div", {}, mark, make("span", {}, name), make("b", {}, value));
    });
    if (rows.length > most) list.push(make("div", {}, `and ${rows.length - most} more`));
    this.tip.replaceChildren(make("strong", {}, head), ...list);
    const room = this.box.clientWidth, width = this.tip.offsetWidth;
    const beside = at + 12 + width <= room ? at + 12 : at - 12 - width;
    this.tip.style.left = `${Math.max(0, Math.min(beside, room - width))}px`;
  }

  valuesAt() {
    const { x, y } = this.spec, series = this.shown(), value = (v) => text(y.log ? 10 ** v : v);
    let where = this.cursor.x, wide = 1;
    const rows = series.map((s) => {
      const i = nearest(s.x, this.cursor.x), v = s.y[i];
      where = s.x[i];
      if (s.kind === "range") wide = s.x[1] - s.x[0];
      const words = s.y2 && (s.y2[i] !== v || s.kind === "band") ? `${value(v)} to ${value(s.y2[i])}` : value(v);
      return [s.name, words, s.colour];
    });
    const first = Math.round(where - (wide - 1) / 2), unit = x.integer ? "draws" : x.label;
    const span = `${unit} ${text(first, 9)} to ${text(first + wide - 1, 9)}`;
    return [wide > 1 ? span : `${x.label} ${text(where, 6)}`, rows, this.place.px(where)];
  }

  pointAt() {
    const { x, y, image } = this.spec, value = this.valueAt(this.cursor);
    const head = `${text(this.cursor.x, 3)} ${x.label}, ${text(this.cursor.y, 3)} ${y.label}`;
    const words = `${text(value, 3)} ${image.label}${value <= image.low ? " or less" : ""}`;
    return [head, [["", words, null]], this.place.px(this.cursor.x)];
  }

  pairAt() {
    const { i, j } = this.cursor, { names, correlations, columns } = this.spec;
    const { left: x, size } = this.cells.cell(i, j);
    const span = (n) => `${text(this.cells.ends[n][0], 3)} to ${text(this.cells.ends[n][1], 3)}`;
    const rows = [...new Set([i, j])].map((n) => [names[n], columns[n].length ? span(n) : "–", null]);
    if (i !== j) rows.push(["correlation", correlations[i][j] === null ? "–" : text(correlations[i][j], 3), null]);
    return [i === j ? names[i] : `${names[i]} and ${names[j]}`, rows, x + size / 2];
  }
}

// Whether another series stands out. (One that has just been switched off does not.)
const dimmed = (key) => lit && !hidden.has(lit) && key && key !== lit;

function line(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.stroke();
}

function dot(c, x, y, radius) {
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.fill();
}

function drawSeries(c, s, px, py, area, opacity) {
  c.strokeStyle = c.fillStyle = chainColour(s.colour);
  c.lineWidth = s.kind === "range" ? 0.8 : 1.3;
  const n = s.x.length, good = (i) => Number.isFinite(s.y[i]);
  if (s.kind === "area" || s.kind === "band") {
    c.globalAlpha = 0.22;
    c.beginPath();
    for (let i = 0; i < n; i++) if (good(i)) c.lineTo(px(s.x[i]), py(s.y[i]));
    for (let i = n - 1; i >= 0; i--) if (good(i)) c.lineTo(px(s.x[i]), s.y2 ? py(s.y2[i]) : area.bottom);
    c.fill();
    c.globalAlpha = 1;
    return;
  }
  c.globalAlpha = s.heavy ? 1 : opacity;
  if (s.kind === "line") c.setLineDash(DASHES[s.dash || 0]);
  c.lineWidth *= s.heavy ? 2 : 1;
  c.beginPath();
  for (let i = 0, before = false; i < n; before = good(i), i++) {
    if (!good(i)) continue;
    const x = px(s.x[i]), first = py(s.y[i]);
    if (before) c.lineTo(x, first); else c.moveTo(x, first);
    if (s.y2) c.lineTo(x, py(s.y2[i]));
  }
  c.stroke();
  c.setLineDash([]);
  if (s.tag) {
    const last = s.y.findLastIndex(Number.isFinite);
    c.globalAlpha = 1;
    c.textAlign = "right";
    c.textBaseline = "middle";
    if (last >= 0) c.fillText(s.tag, px(s.x[last]) - 6, Math.max(py(s.y[last]) - 9, area.top + 3));
  }
  if (n < 30 && !s.plain) for (let i = 0; i < n; i++) if (good(i)) dot(c, px(s.x[i]), py(s.y[i]), 2.2);
  c.globalAlpha = 1;
}

// Only what is on the screen is drawn.
const sizes = new ResizeObserver((entries) => entries.forEach((e) => plots.get(e.target.parentElement)?.redraw()));
const views = new IntersectionObserver((entries) => {
  for (const e of entries) {
    const plot = plots.get(e.target.parentElement);
    if (!plot) continue;
    plot.seen = e.isIntersecting;
    if (plot.seen && plot.stale) plot.redraw();
  }
}, { rootMargin: "300px" });
const redrawAll = () => plots.forEach((plot) => plot.redraw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => plots.forEach((plot) => plot.draw()));

