// A histogram of numbers: a bar for each bucket, in the order of the edges, with the quantiles and their intervals.

import { nice } from "./board.js";
import { drawing, element, fillTable } from "./dom.js";
import { quantileItem } from "./model.js";
import { BUCKETS, about2sd, axisWords, bucketWords, bucketsOf, count, edge, fieldName, quantileWords, short, sumWords, withUnit } from "./words.js";

const NAME_ROWS = 3;
// Narrower bars have a band in place of error bars, which would run into each other.
const WHISKER_PX = 7;
const STRIP_PX = 8;
// Half of what an error bar or an interval has at least, so that it is seen beside its line.
const LEAST_PX = 4;

// [{label, value}] of a snapshot in the order of its buckets; value: null where it is not shown.
export function inOrder(snapshot) {
  const start = (label) => (label[0] === "<" ? -Infinity : Number(label.slice(label[0] === "[" ? 1 : 2).split(",")[0]));
  const found = new Map(snapshot.items.map(([label, value]) => [start(label), { label, value }]));
  return [-Infinity, ...snapshot.edges].map((low) => found.get(low) ?? { label: null, value: null });
}

// What a bucket is called that has this label; null where none has.
export function bucketName(snapshot, label, unit) {
  const index = snapshot.edges ? inOrder(snapshot).findIndex((one) => one.label === label) : -1;
  return index < 0 ? null : withUnit(bucketWords(index, snapshot.edges), unit);
}

export class Bins {
  // onPick(label): a bucket was chosen.
  constructor(box, reading, list, numbers, onPick) {
    Object.assign(this, { box, reading, list, numbers, onPick, snapshot: null, chosen: null });
    this.svg = drawing("svg", { "aria-hidden": "true" });
    box.append(this.svg);
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("pointermove", (event) => this.say(this.bucketAt(event.offsetX)));
    box.addEventListener("pointerleave", () => this.say(this.chosen));
    box.addEventListener("click", (event) => this.pick(this.bucketAt(event.offsetX)));
    box.addEventListener("keydown", (event) => this.key(event));
    numbers.closest("details").addEventListener("toggle", () => this.tabulate());
  }

  // about: {label, unit} of the numbers, where the settings name them.
  show(snapshot, chosen, about) {
    this.snapshot = snapshot;
    this.about = about;
    this.buckets = inOrder(snapshot);
    this.chosen = this.buckets.findIndex((one) => one.label !== null && one.label === chosen);
    this.half = snapshot.sd === null ? 0 : 2 * snapshot.sd;
    this.quantiles = (snapshot.quantiles ?? []).map((one) => ({ ...one, words: quantileWords(one, snapshot.edges, about.unit) }));
    this.listed(chosen);
    this.box.setAttribute("aria-label", this.inWords());
    this.draw();
    this.tabulate();
    this.say(this.chosen);
  }

  // The list of quantiles; what is focused stays, so only texts change.
  listed(chosen) {
    while (this.list.children.length > this.quantiles.length) this.list.lastChild.remove();
    while (this.list.children.length < this.quantiles.length) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(element("span", ""), element("strong", ""), element("small", ""));
      button.addEventListener("click", () => this.onPick(button.item));
      const entry = document.createElement("li");
      entry.append(button);
      this.list.append(entry);
    }
    for (const [index, { q, words }] of this.quantiles.entries()) {
      const button = this.list.children[index].firstChild;
      button.item = quantileItem(q);
      button.setAttribute("aria-pressed", `${button.item === chosen}`);
      for (const [i, text] of [words.name, words.value, words.interval].entries()) button.children[i].textContent = text;
    }
  }

  inWords() {
    const most = this.buckets.reduce((a, b) => ((b.value ?? -Infinity) > (a.value ?? -Infinity) ? b : a));
    const named = this.quantiles.map(({ words }) => `${words.name}: ${[words.value, words.interval].filter((one) => one).join(", ")}.`);
    const largest = most.label === null ? "" : ` Most are ${this.bucketWords(this.buckets.indexOf(most))}: ${count(most.value)}.`;
    return `Histogram of ${count(this.buckets.length)} buckets.${largest} ${named.join(" ")}`.trim();
  }

  bucketWords(index) {
    return withUnit(bucketWords(index, this.snapshot.edges), this.about.unit);
  }

  draw() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    this.svg.replaceChildren();
    if (!this.snapshot || width < 50 || height < 50) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const font = parseFloat(getComputedStyle(document.documentElement).fontSize);
    this.place(width, font);
    const names = this.names(font);
    const rows = names.reduce((most, one) => Math.max(most, one.row + 1), 0);
    const top = 6 + (rows + 1) * 1.1 * font;
    // On a narrow picture the name of the axis has a row of its own.
    this.named = axisWords(this.about) ? (width < 40 * font ? 1 : 0) : -1;
    const bottom = height - (this.named === 1 ? 4.1 : 3) * font;
    const values = this.buckets.map((one) => one.value).filter((value) => value !== null);
    // True counts are never below 0: an error bar is cut there, or at the lowest count.
    const least = Math.min(0, ...values);
    const most = Math.max(1, ...values.map((value) => value + this.half));
    const step = nice((most - least) / 4);
    const y = (value) => bottom - ((value - least) / (most - least)) * (bottom - top);
    for (let value = Math.ceil(least / step) * step; value <= most; value += step) {
      this.svg.append(drawing("line", { class: "grid", x1: this.left, x2: this.right, y1: y(value), y2: y(value) }));
      this.svg.append(drawing("text", { x: this.left - 8, y: y(value) + font * 0.26, "text-anchor": "end" }, short(value, Math.max(most, -least))));
    }
    this.svg.append(drawing("text", { x: 2, y: 0.85 * font }, this.snapshot.change ? "Counted" : "Count"));
    this.bars(y, least);
    for (const [index, one] of this.quantiles.entries()) this.interval(one, top + index * STRIP_PX);
    if (least < 0) this.svg.append(drawing("line", { class: "base", x1: this.left, x2: this.right, y1: y(0), y2: y(0) }));
    for (const one of this.quantiles) {
      if (one.value === null) continue;
      const x = this.x(one.value);
      this.svg.append(drawing("line", { class: "quantile", x1: x, x2: x, y1: top, y2: bottom }));
    }
    for (const one of names) this.svg.append(drawing("text", { class: "quantile-name", x: one.x, y: 1.95 * font + one.row * 1.1 * font, "text-anchor": "middle" }, one.text));
    this.axis(bottom, font);
  }

  // Where the buckets lie: all of one width, but for open-ended ones that would be too narrow to be seen.
  place(width, font) {
    const inner = this.buckets.length - 2;
    this.left = 3.4 * font;
    this.right = width - 0.6 * font;
    this.gap = 0.3 * font;
    const room = this.right - this.left - 2 * this.gap;
    this.outer = Math.max(room / (inner + 2), 1.6 * font);
    this.wide = (room - 2 * this.outer) / inner;
    this.first = this.left + this.outer + this.gap;
  }

  // Left and right of a bucket.
  span(index) {
    if (index === 0) return [this.left, this.left + this.outer];
    if (index === this.buckets.length - 1) return [this.right - this.outer, this.right];
    return [this.first + (index - 1) * this.wide, this.first + index * this.wide];
  }

  // Where a number lies, from the first edge to the last.
  x(value) {
    const { edges } = this.snapshot;
    const above = edges.findIndex((one) => one > value);
    if (above < 0) return this.first + (edges.length - 1) * this.wide;
    if (above === 0) return this.first;
    return this.first + (above - 1 + (value - edges[above - 1]) / (edges[above] - edges[above - 1])) * this.wide;
  }

  bars(y, least) {
    const narrow = this.wide < WHISKER_PX;
    const edgeOf = narrow ? 0 : Math.min(1, this.wide * 0.06);
    const upper = [];
    const lower = [];
    for (const [index, { value }] of this.buckets.entries()) {
      if (value === null) continue;
      const [start, stop] = this.span(index);
      const open = index === 0 || index === this.buckets.length - 1;
      const kind = `${open ? "open" : "fill"}${index === this.chosen ? " chosen" : ""}`;
      const top = Math.min(y(value), y(0));
      this.svg.append(drawing("rect", { class: kind, x: start + edgeOf, width: Math.max(0.2, stop - start - 2 * edgeOf), y: top, height: Math.abs(y(value) - y(0)) }));
      if (this.half === 0) continue;
      // One that is too short to be seen is drawn longer, to both sides.
      const off = Math.max(y(value) - y(value + this.half), LEAST_PX);
      const [above, below, middle] = [y(value) - off, Math.min(y(value) + off, y(least)), (start + stop) / 2];
      if (narrow && !open) {
        upper.push([start, above], [stop, above]);
        lower.unshift([stop, below], [start, below]);
        continue;
      }
      const arm = Math.min(5, (stop - start) / 4);
      this.svg.append(drawing("path", { class: "whisker", d: `M${middle} ${above}V${below}M${middle - arm} ${above}h${2 * arm}M${middle - arm} ${below}h${2 * arm}` }));
    }
    if (upper.length) this.svg.append(drawing("path", { class: "noise", d: `M${[...upper, ...lower].map((point) => point.map((one) => one.toFixed(1)).join(" ")).join("L")}Z` }));
  }

  // A strip across all buckets in which a quantile may be, each below the one before.
  interval(one, top) {
    if (one.bucket === null) return;
    const [low, high] = bucketsOf(one, this.snapshot.edges);
    const start = low === null ? this.left : this.x(low);
    const stop = high === null ? this.right : this.x(high);
    const wide = Math.max(2 * LEAST_PX, stop - start);
    this.svg.append(drawing("rect", { class: "interval", x: (start + stop - wide) / 2, width: wide, y: top, height: STRIP_PX - 2 }));
  }

  // The names of the quantile lines, in rows in which they do not run into each other; what has no room is in the list only.
  names(font) {
    const ends = [];
    const found = [];
    for (const { value, words } of this.quantiles) {
      if (value === null) continue;
      const half = (words.mark.length * 0.62 * 0.75 * font) / 2 + 5;
      const x = Math.min(this.right - half, Math.max(this.left + half, this.x(value)));
      const row = [...Array(NAME_ROWS).keys()].find((r) => (ends[r] ?? []).every(([from, to]) => x + half < from || x - half > to));
      if (row === undefined) continue;
      (ends[row] ??= []).push([x - half, x + half]);
      found.push({ x, row, text: words.mark });
    }
    return found;
  }

  axis(bottom, font) {
    const { edges } = this.snapshot;
    const texts = edges.map(edge);
    const room = Math.max(...texts.map((text) => text.length)) * 0.52 * 0.75 * font + 0.6 * font;
    const stride = Math.max(1, Math.ceil(room / this.wide));
    for (let k = 0; k < edges.length; k += stride) {
      const x = this.first + k * this.wide;
      this.svg.append(drawing("line", { class: "tick", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
      this.svg.append(drawing("text", { x, y: bottom + 1.15 * font, "text-anchor": "middle" }, texts[k]));
    }
    if (this.named >= 0) this.svg.append(drawing("text", { x: (this.left + this.right) / 2, y: bottom + (2.35 + 1.15 * this.named) * font, "text-anchor": "middle" }, axisWords(this.about)));
    this.svg.append(drawing("text", { x: this.left, y: bottom + 2.35 * font }, `◂ below ${texts[0]}`));
    this.svg.append(drawing("text", { x: this.right, y: bottom + 2.35 * font, "text-anchor": "end" }, `${texts.at(-1)} and above ▸`));
  }

  bucketAt(offset) {
    if (!this.snapshot || this.wide === undefined) return -1;
    if (offset < this.first) return 0;
    return Math.min(this.buckets.length - 1, 1 + Math.floor((offset - this.first) / this.wide));
  }

  pick(index) {
    if (index < 0 || this.buckets[index].label === null) return;
    this.chosen = index; // the next key may come before this is drawn
    this.onPick(this.buckets[index].label);
  }

  key(event) {
    const last = this.buckets?.length - 1;
    const to = { ArrowLeft: this.chosen - 1, ArrowRight: this.chosen + 1, Home: 0, End: last }[event.key];
    if (to === undefined || !this.snapshot || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.pick(Math.min(last, Math.max(0, to)));
  }

  say(index) {
    const one = this.buckets?.[index];
    const sd = this.snapshot?.sd ?? null;
    const text = !one || one.value === null ? "" : `${this.bucketWords(index)}: ${count(one.value)}${sd === null ? "" : ` ± ${about2sd(sd)}`}`;
    if (this.reading.textContent !== text) this.reading.textContent = text;
  }

  tabulate() {
    if (!this.snapshot || !this.numbers.closest("details").open) return;
    const off = this.snapshot.sd === null ? "" : about2sd(this.snapshot.sd);
    const { items, sums, sum } = this.snapshot;
    const of = new Map(sums?.map((row, i) => [items[i][0], sumWords(row, sum)]));
    const rows = this.buckets.map(({ label, value }, index) => {
      const words = of.get(label);
      const summed = words ? [words.mean, words.interval, words.total, words.off] : [];
      return [this.bucketWords(index), value === null ? BUCKETS.hidden : count(value), value === null ? "" : off, ...summed];
    });
    const field = fieldName({ sum_field: this.about.sum_field });
    fillTable(this.numbers, ["Bucket", "Count", "± 2 sd", ...(sums ? [`Mean of ${field}`, "95 % interval", `Sum of ${field}`, "± 2 sd"] : [])], rows);
  }
}
