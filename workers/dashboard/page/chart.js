// The chart: published counts of one item or of several over a range of time, each with a band of two standard deviations.

import { marks } from "./axis.js";
import { nice } from "./board.js";
import { drawing, fillTable } from "./dom.js";
import { atMost, count, measured, short, spread, time } from "./words.js";

const RIGHT = 14;
// A band that would be thinner than the line is drawn so much wider than it, to each side: it is there at every zoom.
const BAND_PX = 4;
const DRAG_PX = 8;
// Narrower intervals are drawn as a line: among many dots one cannot see which belong together.
const NARROW_PX = 4;
// What is written over an interval may be so much wider than it.
const RATE_PX = 6;
// With more series than this their beginnings are not marked.
const CUTS = 40;

export class Chart {
  // onZoom(from, to): a part of the time was marked with the pointer.
  constructor(box, reading, numbers, onZoom) {
    Object.assign(this, { box, reading, numbers, onZoom, lines: [], at: null, dragged: null });
    this.svg = drawing("svg", {});
    box.append(this.svg);
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("pointerdown", (event) => (this.dragged = event.button ? null : { from: event.offsetX, to: event.offsetX }));
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerup", () => this.drop());
    box.addEventListener("pointerleave", () => {
      this.dragged = null;
      this.select(null);
    });
    box.addEventListener("blur", () => this.select(null));
    box.addEventListener("keydown", (event) => this.key(event));
    numbers.closest("details").addEventListener("toggle", () => this.tabulate());
  }

  // lines: [{name, kind, points}], kind: a number that names its colour, or "before". points: [{end, tick, id, value, half, threshold,
  // exact}], oldest first; half: half the width of the band, or null; value: null where nothing is shown; from: where an interval begins
  // whose increase the value is; open: it is not over; rate: what that is on average, in words. words.fromZero: the axis begins there.
  // words.numbered: the number of a tick says something. words.measured: values are no counts, and may have parts; then low and high are the ends of the band, or null. range: {step, joined,
  // current, fills}: the width of a step; whether lines go on from epoch to epoch, up to the current one; when a window was not full.
  show(lines, words, range) {
    this.lines = lines.map((line) => ({ ...line, shown: line.points.filter((p) => p.value !== null) }));
    this.words = words;
    this.range = range;
    this.ends = [...new Set(this.lines.flatMap((line) => line.shown.map((p) => p.end)))].sort((a, b) => a - b);
    if (this.at !== null && !this.ends.includes(this.at)) this.at = null;
    this.draw();
    this.tabulate();
  }

  draw() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    if (width < 50 || height < 50) return;
    if (!this.ends?.length) {
      this.svg.append(drawing("text", { class: "message", x: width / 2, y: height / 2 }, this.words?.empty ?? ""));
      this.say(null);
      return;
    }
    const font = parseFloat(getComputedStyle(document.documentElement).fontSize);
    this.scaleValues(height - 1.6 * font, 1.6 * font);
    const left = 0.75 * 0.62 * font * Math.max(4, ...this.labels.map((one) => one.length)) + 12;
    this.plot = { ...this.plot, left, right: width - RIGHT };
    this.scaleTime();
    // Where it does not begin at 0 a line looks steeper than it is.
    const above = this.limits.low > 0 ? `the axis begins at ${this.labels[0]}` : "";
    this.svg.append(drawing("text", { x: 2, y: 0.9 * font }, [this.words?.axis, above].filter((one) => one).join("; ")));
    for (const [from, to] of this.range?.fills ?? []) this.shade(from, to);
    this.grid(font);
    for (const line of [...this.lines].reverse()) this.curve(line);
    this.cursor = drawing("g", {});
    this.svg.append(this.cursor);
    this.select(this.at);
  }

  // Marks a time in which a window was not full.
  shade(from, to) {
    const [left, right] = [from, to].map((at) => this.x(Math.min(this.last, Math.max(this.first, at))));
    if (right > left) this.svg.append(drawing("rect", { class: "filling", x: left, width: Math.max(3, right - left), y: this.plot.top, height: this.plot.bottom - this.plot.top }));
  }

  scaleTime() {
    const { left, right } = this.plot;
    // A range that has hardly begun to be filled is drawn as far as there are ticks, whether the item is shown at them or not.
    const points = this.lines.flatMap((line) => line.points);
    this.first = Math.min(...points.map((p) => p.from ?? p.end));
    this.last = Math.max(...points.map((p) => p.end));
    const wide = this.last - this.first;
    this.x = (end) => (wide === 0 ? (left + right) / 2 : left + ((end - this.first) / wide) * (right - left));
    this.timeAt = (x) => this.first + ((Math.min(right, Math.max(left, x)) - left) / (right - left)) * wide;
  }

  scaleValues(bottom, top) {
    const { low, high, step } = this.bounds();
    this.plot = { top, bottom };
    this.y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    const most = Math.max(Math.abs(low), Math.abs(high));
    const first = Math.ceil(low / step - 1e-9) * step;
    this.marks = Array.from({ length: Math.round((high - first) / step) + 1 }, (_, i) => first + i * step);
    this.labels = this.marks.map((value) => (this.words?.measured ? measured(value) : short(value, most)));
  }

  grid(font) {
    const { left, right, bottom } = this.plot;
    for (const [i, value] of this.marks.entries()) {
      this.svg.append(drawing("line", { class: "grid", x1: left, x2: right, y1: this.y(value), y2: this.y(value) }));
      this.svg.append(drawing("text", { x: left - 8, y: this.y(value) + font * 0.26, "text-anchor": "end" }, this.labels[i]));
    }
    const y = bottom + 1.2 * font;
    if (this.last === this.first) {
      this.svg.append(drawing("text", { x: this.x(this.last), y, "text-anchor": "middle" }, time(this.last)));
      return;
    }
    const found = marks(this.first, this.last, Math.max(2, Math.floor((right - left) / (5.5 * font))));
    // A time stands in the middle below its mark, where nobody takes it for another; at the very edges there is no room for that.
    const hasRoom = ({ at }) => this.x(at) <= right - 1.2 * font && this.x(at) >= left + 1.2 * font;
    const isNamed = found.some(hasRoom) ? hasRoom : () => true;
    for (const one of found) {
      const x = this.x(one.at);
      this.svg.append(drawing("line", { class: "tick", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
      if (isNamed(one)) this.svg.append(drawing("text", { x, y, "text-anchor": "middle" }, one.text));
    }
  }

  curve({ kind, points }) {
    const group = drawing("g", { class: `series series-${kind}` });
    this.svg.append(group);
    const begun = kind === 0 && !this.range?.joined ? beginnings(points) : [];
    for (const at of begun.length < CUTS ? begun : []) {
      group.append(drawing("line", { class: "cut", x1: this.x(at), x2: this.x(at), y1: this.plot.top, y2: this.plot.bottom }));
    }
    const narrow = this.x(this.first + (this.range?.step ?? 0)) - this.x(this.first) < NARROW_PX;
    for (const run of this.runs(points)) {
      if (run[0].from !== undefined && !narrow) this.steps(group, run);
      else this.run(group, run);
    }
  }

  run(group, run) {
    const { x, y } = this;
    const banded = run.filter((p) => p.half !== null);
    if (banded.length > 1) {
      const upper = banded.map((p) => [x(p.end), this.topOf(p)]);
      const lower = banded.map((p) => [x(p.end), this.bottomOf(p)]).reverse();
      group.append(drawing("path", { class: "band", d: `${path([...upper, ...lower])}Z` }));
    } else if (banded.length === 1) {
      const [p] = banded;
      group.append(drawing("rect", { class: "band", x: x(p.end) - 7, width: 14, y: this.topOf(p), height: this.bottomOf(p) - this.topOf(p) }));
    }
    const limits = run.filter((p) => p.threshold !== null && p.threshold !== undefined);
    if (limits.length > 1 && this.lines.length === 1 && limits.every((p) => this.inside(p.threshold))) {
      group.append(drawing("path", { class: "limit", fill: "none", d: path(limits.map((p) => [x(p.end), y(p.threshold)])) }));
    }
    if (run.length > 1) group.append(drawing("path", { class: "line", d: path(run.map((p) => [x(p.end), y(p.value)])) }));
    else group.append(drawing("circle", { class: "point", cx: x(run[0].end), cy: y(run[0].value), r: 3 }));
    const exact = run.filter((p) => p.exact !== undefined);
    if (exact.length > 1) group.append(drawing("path", { class: "exact-line", d: path(exact.map((p) => [x(p.end), y(p.exact)])) }));
  }

  // Increases, each over its interval.
  steps(group, run) {
    const { x, y } = this;
    for (const p of run) {
      const [left, right] = [x(p.from), x(p.end)];
      const wide = Math.max(1, right - left - 1);
      if (p.half !== null) group.append(drawing("rect", { class: "band", x: left, width: wide, y: this.topOf(p), height: this.bottomOf(p) - this.topOf(p) }));
      group.append(drawing("path", { class: "line", d: `M${left.toFixed(1)} ${y(p.value).toFixed(1)}h${wide.toFixed(1)}` }));
      if (p.rate === undefined || this.lines.length > 1) continue;
      const text = drawing("text", { class: "rate", x: left + wide / 2, y: this.topOf(p) - 4, "text-anchor": "middle" }, p.rate);
      group.append(text);
      if (text.getComputedTextLength() > wide + RATE_PX) text.remove();
    }
  }

  topOf(p) {
    return Math.min(this.y(highOf(p)), this.y(p.value) - BAND_PX);
  }

  bottomOf(p) {
    return Math.min(this.plot.bottom, Math.max(this.y(lowOf(p)), this.y(p.value) + BAND_PX));
  }

  inside(value) {
    return value >= this.limits.low && value <= this.limits.high;
  }

  bounds() {
    let low = Infinity;
    let high = -Infinity;
    let least = Infinity;
    for (const p of this.lines.flatMap((line) => line.shown)) {
      low = Math.min(low, lowOf(p), p.exact ?? Infinity);
      high = Math.max(high, highOf(p), p.exact ?? -Infinity);
      least = Math.min(least, p.value, p.exact ?? Infinity);
    }
    // True counts are never below 0: where no line is, its band is cut there, or at the lowest of the line.
    const counts = !this.words?.measured;
    if (counts) low = Math.max(low, Math.min(0, least));
    if (this.words?.fromZero) low = Math.min(0, low);
    const narrow = Math.abs(high) * 1e-9;
    const step = this.words?.measured ? fine(Math.max((high - low) / 3, narrow) || 1) : nice((high - low) / 3 || Math.max(1, narrow));
    this.limits = { low: counts && low < 0 ? low : Math.floor(low / step) * step, high: Math.ceil(high / step) * step || step, step };
    if (this.limits.low === this.limits.high) this.limits.high += step;
    return this.limits;
  }

  // Pieces without a gap: of one series, and with no tick or step in between at which the item is not shown.
  runs(points) {
    const runs = [];
    let before = null;
    for (const p of points) {
      if (p.value !== null) {
        const same = before && (p.id === before.id || (this.range?.joined && p.id !== this.range.current));
        const near = same && (p.from === undefined ? p.end - before.end <= 2.5 * (this.range?.step ?? 0) || p.tick === before.tick + 1 : p.from <= before.end);
        if (near) runs.at(-1).push(p);
        else runs.push([p]);
      }
      before = p.value === null ? null : p;
    }
    return runs;
  }

  move(event) {
    if (this.dragged && event.buttons) {
      this.dragged.to = event.offsetX;
      this.mark();
    }
    if (!this.ends?.length || !this.x) return;
    const near = (end) => Math.abs(this.x(end) - event.offsetX);
    this.select(this.ends.reduce((best, end) => (near(end) < near(best) ? end : best)));
  }

  // Shows the time that is being marked.
  mark() {
    const { from, to } = this.dragged;
    this.marked?.remove();
    this.marked = null;
    if (Math.abs(to - from) < DRAG_PX || !this.plot) return;
    this.marked = drawing("rect", { class: "marked", x: Math.min(from, to), width: Math.abs(to - from), y: this.plot.top, height: this.plot.bottom - this.plot.top });
    this.svg.append(this.marked);
  }

  drop() {
    const { from, to } = this.dragged ?? { from: 0, to: 0 };
    this.dragged = null;
    this.marked?.remove();
    if (Math.abs(to - from) < DRAG_PX || !this.timeAt || this.last === this.first) return;
    this.onZoom(Math.round(this.timeAt(Math.min(from, to))), Math.round(this.timeAt(Math.max(from, to))));
  }

  key(event) {
    if (!this.ends?.length) return;
    const index = this.ends.indexOf(this.at);
    const from = index < 0 ? this.ends.length - 1 : index;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: this.ends.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.select(this.ends[Math.min(this.ends.length - 1, Math.max(0, to))]);
  }

  select(end) {
    this.at = end;
    this.cursor?.replaceChildren();
    const at = this.lines.map((line) => ({ ...line, p: line.shown.find((p) => p.end === end) ?? null }));
    const first = at.find((line) => line.p !== null);
    if (first && this.cursor) {
      const x = this.x(end);
      this.cursor.append(drawing("line", { class: "cursor", x1: x, x2: x, y1: this.plot.top, y2: this.plot.bottom }));
      for (const { p, kind } of at) if (p) this.cursor.append(drawing("circle", { class: `point point-${kind}`, cx: x, cy: this.y(p.value), r: 4 }));
    }
    const last = this.lines[0]?.shown.at(-1)?.end ?? Infinity;
    this.say(first ? at : this.lines.map((line) => ({ ...line, p: line.shown.findLast((p) => p.end <= last) ?? null })));
  }

  say(lines) {
    const said = (lines ?? []).filter((line) => line.p !== null);
    const [main, ...others] = said;
    if (!main) {
      this.reading.textContent = "";
      return;
    }
    const when = main.p.from === undefined ? `${this.words?.numbered ? `Tick ${count(main.p.tick)}, ` : "At "}${time(main.p.end)}` : `From ${time(main.p.from)}${main.p.open ? ", so far until" : " to"} ${time(main.p.end)}`;
    const name = this.lines.length > 1 ? `${main.name} ` : "";
    this.reading.textContent = [`${when}: ${name}${this.valueWords(main.p)}`, ...others.map((line) => `${line.name} ${this.valueWords(line.p)}`)].join("; ");
  }

  valueWords(p) {
    if (this.words?.measured) {
      const { value, interval } = spread(p.value, p.low, p.high);
      // Of a quantile the bucket is what is known.
      return this.words.bucketed ? `${interval}, about ${value}` : `${value} (${interval})`;
    }
    const off = p.half === null ? "" : ` ± ${count(p.half)}`;
    const exact = p.exact === undefined ? "" : `, exact ${count(p.exact)}`;
    // As on the board: what noise alone may make is not written as a number.
    const unsure = p.half !== null && p.value <= p.half;
    return `${unsure ? atMost(p.value + p.half) : count(p.value) + off}${exact}${p.rate === undefined ? "" : `, ${p.rate}`}`;
  }

  // The first line as numbers, and the values of the others at the same times.
  tabulate() {
    if (!this.numbers.closest("details").open || !this.lines.length) return;
    const [main, ...others] = this.lines;
    const withExact = main.shown.some((p) => p.exact !== undefined);
    const rate = main.shown.some((p) => p.from !== undefined);
    const even = main.shown.some((p) => p.rate !== undefined);
    const head = ["Tick", rate ? "Until" : "Ended", this.words?.measured ? "Value" : rate ? "Counted" : "Count", this.words?.half ?? "±", ...(even ? ["On average"] : []), ...(withExact ? ["Exact"] : []), ...others.flatMap((line) => [line.name, "±"])];
    const beside = others.map((line) => new Map(line.shown.map((p) => [p.end, p])));
    const rows = [...main.shown].reverse().map((p) => [
      count(p.tick),
      time(p.end),
      ...(this.words?.measured ? Object.values(spread(p.value, p.low, p.high)) : [count(p.value), p.half === null ? "" : count(p.half)]),
      ...(even ? [p.rate ?? ""] : []),
      ...(withExact ? [p.exact === undefined ? "" : count(p.exact)] : []),
      ...beside.flatMap((points) => {
        const one = points.get(p.end);
        return one ? [this.words?.measured ? measured(one.value) : count(one.value), one.half === null ? "" : this.words?.measured ? measured(one.half) : count(one.half)] : ["", ""];
      }),
    ]);
    fillTable(this.numbers, head, rows);
  }
}

const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");

// When a series began that follows another one: with its epoch, or, where a generation was begun within one, after the last tick of the
// series before it.
export const beginnings = (points) => points.flatMap((p, i) => {
  const before = points[i - 1];
  return before && before.id !== p.id ? [p.from ?? Math.max(before.end, p.end - p.tick * (p.end - p.start))] : [];
});

// Top and bottom of the band at a point; the point itself where the band is open, or there is none.
const highOf = (p) => (p.high === undefined ? p.value + (p.half ?? 0) : (p.high ?? p.value));
const lowOf = (p) => (p.low === undefined ? p.value - (p.half ?? 0) : (p.low ?? p.value));

// 1, 2 or 5 times a power of ten, however small.
function fine(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return ([1, 2, 5].find((times) => times * power >= step * 0.999) ?? 10) * power;
}
