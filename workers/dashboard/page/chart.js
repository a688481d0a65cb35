// The chart of one item: its published count over the last ticks, with a band of two standard deviations.

import { nice } from "./board.js";
import { count, measured, short, spread, time } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 10, right: 14, bottom: 24, left: 56 };

export class Chart {
  constructor(box, reading, numbers) {
    this.box = box;
    this.reading = reading;
    this.numbers = numbers;
    this.series = [];
    this.at = null;
    this.svg = make("svg", {});
    box.append(this.svg);
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("pointermove", (event) => this.point(event.offsetX));
    box.addEventListener("pointerleave", () => this.select(null));
    box.addEventListener("blur", () => this.select(null));
    box.addEventListener("keydown", (event) => this.key(event));
    numbers.closest("details").addEventListener("toggle", () => this.tabulate());
  }

  // series: [{end, tick, id, value, half, threshold, exact}], oldest first; half: half the width of the band, or null.
  // words.measured: values are no counts, and may have parts; then low and high are the ends of the band, or null.
  show(series, words) {
    this.series = series;
    this.words = words;
    if (this.at !== null && !series.some((point) => point.end === this.at)) this.at = null;
    this.draw();
    this.tabulate();
  }

  draw() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    if (width < 50 || height < 50) return;
    if (!this.series.length) {
      this.svg.append(make("text", { class: "message", x: width / 2, y: height / 2 }, this.words?.empty ?? ""));
      this.say(null);
      return;
    }
    const font = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const m = { ...MARGIN, left: 3.4 * font, bottom: 1.6 * font };
    const first = this.series[0].end;
    const last = this.series.at(-1).end;
    const x = (end) => (last === first ? (width + m.left - m.right) / 2 : m.left + ((end - first) / (last - first)) * (width - m.left - m.right));
    const { low, high, step } = this.range();
    const y = (value) => height - m.bottom - ((value - low) / (high - low)) * (height - m.top - m.bottom);
    for (let value = low; value <= high + step / 2; value += step) {
      this.svg.append(make("line", { class: "grid", x1: m.left, x2: width - m.right, y1: y(value), y2: y(value) }));
      this.svg.append(make("text", { x: m.left - 8, y: y(value) + font * 0.26, "text-anchor": "end" }, this.words?.measured ? measured(value) : short(value)));
    }
    this.svg.append(make("text", { x: m.left, y: height - 4 }, time(first)));
    if (last > first) this.svg.append(make("text", { x: width - m.right, y: height - 4, "text-anchor": "end" }, time(last)));
    let before = null;
    for (const run of this.runs()) {
      if (before !== null && before !== run[0].id) {
        this.svg.append(make("line", { class: "cut", x1: x(run[0].end), x2: x(run[0].end), y1: m.top, y2: height - m.bottom }));
      }
      before = run[0].id;
      this.curves(run, x, y);
    }
    if (last === first) this.svg.append(make("circle", { class: "point", cx: x(last), cy: y(this.series[0].value), r: 4 }));
    this.x = x;
    this.y = y;
    this.cursor = make("g", {});
    this.svg.append(this.cursor);
    this.select(this.at);
  }

  curves(run, x, y) {
    const line = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    const banded = run.filter((p) => p.half !== null);
    if (banded.length > 1) {
      const upper = banded.map((p) => [x(p.end), y(topOf(p))]);
      const lower = banded.map((p) => [x(p.end), y(bottomOf(p))]).reverse();
      this.svg.append(make("path", { class: "band", d: `${line([...upper, ...lower])}Z` }));
    }
    const limits = run.filter((p) => p.threshold !== null && p.threshold !== undefined);
    if (limits.length > 1 && limits.every((p) => this.inside(p.threshold))) {
      this.svg.append(make("path", { class: "limit", fill: "none", d: line(limits.map((p) => [x(p.end), y(p.threshold)])) }));
    }
    if (run.length > 1) this.svg.append(make("path", { class: "line", d: line(run.map((p) => [x(p.end), y(p.value)])) }));
    else this.svg.append(make("circle", { class: "point", cx: x(run[0].end), cy: y(run[0].value), r: 3 }));
    const exact = run.filter((p) => p.exact !== undefined);
    if (exact.length > 1) this.svg.append(make("path", { class: "exact-line", d: line(exact.map((p) => [x(p.end), y(p.exact)])) }));
  }

  inside(value) {
    return value >= this.bounds.low && value <= this.bounds.high;
  }

  range() {
    let low = Infinity;
    let high = -Infinity;
    for (const p of this.series) {
      low = Math.min(low, bottomOf(p), p.exact ?? Infinity);
      high = Math.max(high, topOf(p), p.exact ?? -Infinity);
    }
    const least = Math.abs(high) * 1e-9;
    const step = this.words?.measured ? fine(Math.max((high - low) / 3, least) || 1) : nice((high - low) / 3 || Math.max(1, least));
    this.bounds = { low: Math.floor(low / step) * step, high: Math.ceil(high / step) * step || step, step };
    if (this.bounds.low === this.bounds.high) this.bounds.high += step;
    return this.bounds;
  }

  // Pieces without a gap: of one series, and with no tick in between at which the item is not shown.
  runs() {
    const runs = [];
    let before = null;
    for (const p of this.series) {
      if (before && p.id === before.id && p.tick === before.tick + 1) runs.at(-1).push(p);
      else runs.push([p]);
      before = p;
    }
    return runs;
  }

  point(offset) {
    if (!this.series.length || !this.x) return;
    let best = this.series[0];
    for (const p of this.series) if (Math.abs(this.x(p.end) - offset) < Math.abs(this.x(best.end) - offset)) best = p;
    this.select(best.end);
  }

  key(event) {
    const index = this.series.findIndex((p) => p.end === this.at);
    const from = index < 0 ? this.series.length - 1 : index;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: this.series.length - 1 }[event.key];
    if (to === undefined || !this.series.length) return;
    event.preventDefault();
    this.select(this.series[Math.min(this.series.length - 1, Math.max(0, to))].end);
  }

  select(end) {
    this.at = end;
    const point = this.series.find((p) => p.end === end) ?? null;
    this.cursor?.replaceChildren();
    if (point && this.cursor) {
      const x = this.x(point.end);
      this.cursor.append(make("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: this.box.clientHeight - MARGIN.bottom }));
      this.cursor.append(make("circle", { class: "point", cx: x, cy: this.y(point.value), r: 4 }));
    }
    this.say(point ?? this.series.at(-1) ?? null);
  }

  say(p) {
    if (!p) {
      this.reading.textContent = "";
      return;
    }
    if (this.words?.measured) {
      const { value, interval } = spread(p.value, p.low, p.high);
      this.reading.textContent = `Tick ${count(p.tick)}, ${time(p.end)}: ${value} (${interval})`;
      return;
    }
    const off = p.half === null ? "" : ` ± ${count(p.half)}`;
    const exact = p.exact === undefined ? "" : `, exact ${count(p.exact)}`;
    this.reading.textContent = `Tick ${count(p.tick)}, ${time(p.end)}: ${count(p.value)}${off}${exact}`;
  }

  tabulate() {
    if (!this.numbers.closest("details").open) return;
    const withExact = this.series.some((p) => p.exact !== undefined);
    const head = ["Tick", "Ended", this.words?.measured ? "Value" : "Count", this.words?.half ?? "±", ...(withExact ? ["Exact"] : [])];
    const rows = [...this.series].reverse().map((p) => this.words?.measured ? [count(p.tick), time(p.end), ...Object.values(spread(p.value, p.low, p.high))] : [count(p.tick), time(p.end), count(p.value), p.half === null ? "" : count(p.half), ...(withExact ? [p.exact === undefined ? "" : count(p.exact)] : [])]);
    const thead = document.createElement("thead");
    thead.append(cells(head, "th"));
    const tbody = document.createElement("tbody");
    tbody.append(...rows.map((row) => cells(row, "td")));
    this.numbers.replaceChildren(thead, tbody);
  }
}

// Top and bottom of the band at a point; the point itself where the band is open, or there is none.
const topOf = (p) => (p.high === undefined ? p.value + (p.half ?? 0) : (p.high ?? p.value));
const bottomOf = (p) => (p.low === undefined ? p.value - (p.half ?? 0) : (p.low ?? p.value));

// 1, 2 or 5 times a power of ten, however small.
function fine(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return ([1, 2, 5].find((times) => times * power >= step * 0.999) ?? 10) * power;
}

function cells(texts, kind) {
  const tr = document.createElement("tr");
  for (const text of texts) {
    const cell = document.createElement(kind);
    if (kind === "th") cell.scope = "col";
    cell.textContent = text;
    tr.append(cell);
  }
  return tr;
}

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, `${value}`);
  if (text !== undefined) element.textContent = text;
  return element;
}
