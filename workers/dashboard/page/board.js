// The board: one row an item, in an order that noise alone does not make; only visible rows are in the document.

import { byId, set } from "./dom.js";
import { TIMES, ends, least, most, places } from "./noise.js";
import { isApart, ordered, parseOrder } from "./order.js";
import { NOTHING, about2sd, atMost, between, count, oneLine, placesWords, rated, restShare, short, sumWords, thresholdIsCount, thresholdStays } from "./words.js";

const AHEAD = 6;
const TICKS = 4;
const MOVE_MS = 350;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Board {
  // onPick(label, again): an item was chosen; again: "back" need not stop at the one before. onSort(by): the title of a column was pressed.
  constructor(scroller, onPick, onSort) {
    this.scroller = scroller;
    this.table = scroller.querySelector("#table");
    this.body = scroller.querySelector("#rows");
    this.axis = scroller.querySelector("#axis");
    this.empty = scroller.querySelector("#empty");
    this.under = byId("under");
    this.onPick = onPick;
    this.rows = [];
    this.made = new Map();
    this.chosen = null;
    this.active = null;
    this.above = space();
    this.below = space();
    this.others = othersRow();
    this.body.append(this.above, this.below, this.others);
    this.due = false;
    this.whole = false;
    this.fits = Infinity;
    scroller.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.measure()).observe(scroller);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr.item");
      if (row) this.pick(row.label, false);
    });
    this.body.addEventListener("keydown", (event) => this.key(event));
    for (const title of this.table.tHead.querySelectorAll("[data-sort]")) title.addEventListener("click", () => onSort(title.dataset.sort));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    this.measure();
  }

  // snapshot: what to show; moves: how items have moved (noise.js); exact: Map of exact counts, or null; wanted: text that labels
  // must contain; before: {snapshot, comparable, rest}, an earlier one beside it, or null; nothing, found: what is said where there is
  // no item, and none of what is wanted; rest: what is not listed (noise.js), or null, there and in `before`; newly: what "newly shown"
  // means here; order: as the address says it (order.js);
  // rate: what counts are multiplied by (ranges.js), or null.
  show(snapshot, { moves, exact, wanted, before, nothing, found, rest, newly, order, rate = null }) {
    const search = wanted.trim().toLocaleLowerCase();
    this.exact = exact;
    this.rate = rate;
    this.newly = newly;
    this.sd = snapshot.sd;
    this.moves = moves;
    this.before = before && { ...before, counts: new Map(before.snapshot.items), half: TIMES * (before.snapshot.sd ?? 0) };
    this.sum = snapshot.sum;
    this.limit = snapshot.threshold !== null && thresholdIsCount(snapshot.mechanism) ? snapshot.threshold : null;
    this.stays = thresholdStays(snapshot.mechanism);
    let low = 0;
    let high = 1;
    const rows = snapshot.items.map(([label, value], index) => {
      const [from, to] = ends(snapshot, label, value);
      const earlier = this.before?.counts.get(label) ?? 0;
      low = Math.min(low, from, earlier);
      high = Math.max(high, to, exact?.get(label) ?? 0, earlier);
      return { label, value, from, to, least: least(snapshot.change, label, value), most: most(snapshot.change, label, value), sums: snapshot.sums?.[index] };
    });
    this.scale(low, Math.max(high, this.limit ?? 0));
    this.all = snapshot.items.length;
    // A change of a new item has the noise of its count.
    const sd = snapshot.change?.new.length && snapshot.sd !== null ? Math.max(snapshot.sd, snapshot.change.sd_to) : snapshot.sd;
    const between = places(rows, snapshot.total_items ?? this.all, sd);
    for (const [index, row] of rows.entries()) row.places = between[index];
    this.ranked = ordered(rows, null, {});
    for (const [index, row] of this.ranked.entries()) row.rank = index + 1;
    const context = { sum: snapshot.sum, changeOf: (row) => this.changeOf(row) };
    this.rows = ordered(this.ranked, order, context);
    for (const [index, row] of this.rows.entries()) row.apart = isApart(row) && !isApart(this.rows[index - 1] ?? row);
    if (search) this.rows = this.rows.filter((row) => row.label.toLocaleLowerCase().includes(search));
    this.titles(parseOrder(order));
    // The longest that is written there: both ends of the last places.
    this.table.style.setProperty("--rank", `${Math.max(3.9, 0.9 + 0.47 * (2 * `${this.all}`.length + 1))}rem`);
    this.table.classList.toggle("void", !this.rows.length);
    this.table.classList.toggle("with-exact", exact !== null);
    this.table.classList.toggle("with-uneven", this.rows.some(isUneven));
    // Rows are higher with sums, and on a narrow screen beside an earlier tick.
    const lines = [["with-sums", Boolean(snapshot.sums)], ["with-before", this.before !== null]];
    if (lines.some(([name, has]) => this.table.classList.contains(name) !== has)) {
      for (const [name, has] of lines) this.table.classList.toggle(name, has);
      this.measure();
    }
    this.table.classList.toggle("with-moves", this.rows.some((row) => marked(moves.of(row.label))));
    this.others.hidden = rest === null || search !== "";
    this.table.setAttribute("aria-rowcount", `${(snapshot.total_items ?? this.all) + (this.others.hidden ? 1 : 2)}`);
    if (rest) this.fillOthers(rest);
    this.empty.hidden = this.rows.length > 0;
    this.empty.textContent = this.all ? found : nothing;
    this.moved = true;
    this.draw();
  }

  // [least, most] by which a row has changed since the snapshot beside, or in its rank; null where it was not there.
  changeOf({ label, value }) {
    if (!this.before) {
      const { isNew, by } = this.moves.of(label);
      return isNew ? null : [by, by];
    }
    const was = this.before.counts.get(label);
    const off = this.before.off;
    return was === undefined || off === null ? null : [value - was - off, value - was + off];
  }

  // Whether a row is below what an item has to pass to be shown: it passed that before.
  isBelow({ value }) {
    return this.stays && this.limit !== null && value <= this.limit;
  }

  // The rows that can be seen: on a wall only those that there is room for.
  get reachable() {
    return this.rows.slice(0, this.fits - (this.others.hidden ? 0 : 1));
  }

  // Which column the rows are ordered by.
  titles({ by, falls }) {
    for (const title of this.table.tHead.querySelectorAll("[data-sort]")) {
      const head = title.closest("th");
      if (title.dataset.sort === by) head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  clear(text) {
    this.ranked = [];
    this.rows = [];
    this.others.hidden = true;
    this.table.classList.add("void");
    this.empty.hidden = false;
    this.empty.textContent = text;
    this.draw();
  }

  choose(label) {
    this.chosen = label;
    this.draw();
  }

  // Scrolls to an item, if it is there.
  reveal(label) {
    const index = this.rows.findIndex((row) => row.label === label);
    if (index < 0) return;
    const top = index * this.height;
    const room = this.scroller.clientHeight - this.head;
    if (top < this.scroller.scrollTop || top + this.height > this.scroller.scrollTop + room) {
      this.scroller.scrollTop = Math.max(0, top - room / 2);
    }
    this.draw();
  }

  // On paper there is no scrolling: all rows are drawn.
  print(whole) {
    this.whole = whole;
    this.draw();
  }

  scale(low, high) {
    const room = this.axis.clientWidth / (4.2 * parseFloat(getComputedStyle(this.axis).fontSize));
    const times = this.rate?.times ?? 1;
    const step = nice((times * (high - low)) / Math.min(TICKS, Math.max(1, Math.floor(room))), this.rate === null) / times;
    this.low = low < 0 ? low : 0;
    this.high = high;
    this.at = (value) => Math.min(100, Math.max(0, (100 * (value - this.low)) / (this.high - this.low)));
    const marks = [];
    for (let value = Math.ceil(this.low / step) * step; value <= this.high; value += step) marks.push(value);
    this.axis.replaceChildren(
      ...marks.map((value) => {
        const mark = document.createElement("span");
        mark.textContent = this.rate ? short(value * this.rate.times) : short(value, high);
        mark.style.left = `${this.at(value)}%`;
        return mark;
      }),
    );
  }

  measure() {
    this.table.style.removeProperty("--row");
    const probe = getComputedStyle(this.table).getPropertyValue("--row");
    this.height = parseFloat(probe) * parseFloat(getComputedStyle(document.documentElement).fontSize);
    this.head = this.table.tHead.offsetHeight;
    this.fits = Infinity;
    // On a wall, where nothing can be scrolled, whole rows fill the height.
    if (document.documentElement.dataset.look === "wall" && getComputedStyle(this.scroller).overflowY === "hidden") {
      const room = this.scroller.clientHeight - this.head;
      const lines = Math.max(1, Math.floor(room / this.height));
      this.height = Math.floor(room / lines);
      this.table.style.setProperty("--row", `${this.height}px`);
      this.fits = lines;
    }
    this.later();
  }

  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  draw() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    const fixed = this.fits < Infinity;
    const room = this.fits - (this.others.hidden ? 0 : 1);
    const more = !this.whole && (fixed ? this.rows.length > room : scrollTop + clientHeight < scrollHeight - 2);
    this.scroller.classList.toggle("more", more && !fixed);
    const under = this.rows.length - (fixed ? room : Math.floor((scrollTop + clientHeight - this.head) / this.height));
    set(this.under, more ? `▾ ${under > 0 ? `${count(under)} ` : ""}more${fixed ? "" : " below"}` : "");
    const first = this.whole || fixed ? 0 : Math.max(0, Math.floor(scrollTop / this.height) - AHEAD);
    const last = this.whole ? this.rows.length : fixed ? Math.min(this.rows.length, room) : Math.min(this.rows.length, Math.ceil((scrollTop + clientHeight) / this.height) + AHEAD);
    const shown = this.rows.slice(Math.min(first, last), last);
    const made = new Map();
    let after = this.above;
    const moves = [];
    for (const [offset, row] of shown.entries()) {
      const index = first + offset;
      const tr = this.made.get(row.label) ?? newRow(row.label);
      if (this.moved && tr.index !== undefined && tr.index !== index) moves.push([tr, (tr.index - index) * this.height]);
      tr.index = index;
      this.fill(tr, row);
      made.set(row.label, tr);
      if (after.nextSibling !== tr) after.after(tr);
      after = tr;
    }
    for (const [label, tr] of this.made) if (!made.has(label)) tr.remove();
    this.made = made;
    this.above.firstChild.style.height = `${Math.min(first, last) * this.height}px`;
    this.below.firstChild.style.height = `${fixed ? 0 : Math.max(0, this.rows.length - last) * this.height}px`;
    const current = made.has(this.active) ? this.active : made.has(this.chosen) ? this.chosen : shown[0]?.label;
    for (const [label, tr] of made) tr.button.tabIndex = label === current ? 0 : -1;
    if (!still.matches) {
      for (const [tr, by] of moves) {
        tr.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: MOVE_MS, easing: "ease-out" });
      }
    }
    this.moved = false;
  }

  fill(tr, row) {
    const c = tr.parts;
    tr.setAttribute("aria-rowindex", `${tr.index + 2}`);
    tr.classList.toggle("chosen", row.label === this.chosen);
    tr.classList.toggle("apart", row.apart);
    tr.classList.toggle("below", this.isBelow(row));
    tr.button.setAttribute("aria-pressed", `${row.label === this.chosen}`);
    rank(c.rank, row);
    change(c.change, this.moves.of(row.label), this.newly);
    numbers(c, row, this.sd, isUneven(row) ? this.newly : "", Boolean(row.sums), this.rate);
    if (this.before) this.compare(c, row);
    if (row.sums) sums(c, row.sums, this.sum);
    const from = this.at(Math.min(0, row.value));
    place(c.fill, from, this.at(Math.max(0, row.value)) - from);
    c.error.hidden = this.sd === null;
    // About its middle: one that is too short to be seen is drawn longer, to both sides.
    const [left, right] = [this.at(row.from), this.at(row.to)];
    place(c.error, (left + right) / 2, right - left);
    c.limit.hidden = this.limit === null;
    if (this.limit !== null) place(c.limit, this.at(this.limit), null);
    c.zero.hidden = this.low >= 0;
    place(c.zero, this.at(0), null);
    if (this.exact) {
      const truth = this.exact.get(row.label);
      set(c.truth, truth === undefined ? "" : count(truth));
      place(c.true, this.at(0), truth === undefined ? 0 : this.at(truth) - this.at(0));
    }
  }

  fillOthers(rest) {
    const c = this.others.parts;
    // Where nothing is listed they are all there is.
    set(c.label, this.all ? "others" : "everything");
    numbers(c, rest, rest.sd, "", Boolean(this.sum), this.rate);
    set(c.bar, this.all ? restShare(rest) : "");
    if (this.before) this.difference(c.prev, rest.value, this.before.rest ?? undefined, this.before.restOff, "not known");
  }

  compare(c, row) {
    const was = this.before.counts.get(row.label);
    const { half } = this.before;
    this.difference(c.prev, row.value, was === undefined ? was : { value: was, from: half === 0 ? Infinity : was - half, to: was + half }, isUneven(row) ? null : this.before.off);
    c.before.hidden = was === undefined;
    if (was === undefined) return;
    const from = this.at(Math.min(0, was));
    place(c.before, from, this.at(Math.max(0, was)) - from);
  }

  // A number and what it was in the snapshot beside, {value, from, to} with the ends of its error bar, undefined if it was not shown;
  // off: what noise may make of their difference.
  difference(cell, value, was, off, missing = "not shown") {
    const comparable = this.before.comparable && off !== null;
    const by = was === undefined || !comparable || Math.abs(value - was.value) <= off ? 0 : value - was.value;
    const [then, since] = cell.children;
    const [written, error] = off === null ? ["", ""] : rated(by, off, this.rate);
    set(then, was === undefined ? missing : was.from <= 0 ? atMost(was.to, this.rate) : rated(was.value, off ?? 0, this.rate)[0]);
    set(since, was === undefined || !comparable ? "" : by === 0 ? `≈ ± ${error}` : `${by > 0 ? "+" : ""}${written} ± ${error}`);
    since.className = by > 0 ? "up" : by < 0 ? "down" : "";
    cell.title = was === undefined || !comparable ? "" : by === 0 ? `No difference that noise does not explain (± ${error})` : "More since then, or less, than noise explains";
  }

  // again: by a key, as one of many that are passed.
  pick(label, again) {
    this.active = label;
    this.onPick(label, again);
  }

  key(event) {
    const page = Math.max(1, Math.floor((this.scroller.clientHeight - this.head) / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const row = event.target.closest("tr.item");
    if (!row || !(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const now = this.rows.findIndex((one) => one.label === row.label);
    const next = this.rows[Math.min(this.rows.length - 1, Math.max(0, now + steps[event.key]))];
    this.active = next.label;
    this.reveal(next.label);
    this.made.get(next.label)?.button.focus({ preventScroll: true });
    this.pick(next.label, true);
  }
}

function cells(kind) {
  const tr = document.createElement("tr");
  tr.className = kind;
  tr.setAttribute("role", "row");
  tr.parts = {};
  for (const name of ["rank", "change", "label", "count", "sd", "prev", "truth", "mean", "sum", "bar"]) {
    const td = document.createElement("td");
    td.className = name;
    td.setAttribute("role", "cell");
    tr.append(td);
    tr.parts[name] = td;
  }
  for (const name of ["count", "prev", "mean", "sum"]) tr.parts[name].append(document.createElement("span"), document.createElement("small"));
  return tr;
}

// Not an item: it has no rank, and nothing to follow.
function othersRow() {
  const tr = cells("others");
  tr.hidden = true;
  tr.parts.label.textContent = "others";
  return tr;
}

function newRow(label) {
  const tr = cells("item");
  tr.label = label;
  tr.parts.rank.append(document.createElement("span"));
  tr.button = document.createElement("button");
  tr.button.type = "button";
  tr.button.className = label ? "pick" : "pick nothing";
  tr.button.dir = "auto";
  tr.button.textContent = oneLine(label) || NOTHING.empty;
  tr.button.title = label;
  tr.parts.label.append(tr.button);
  const track = document.createElement("div");
  track.className = "track";
  track.setAttribute("aria-hidden", "true");
  for (const name of ["fill", "before", "true", "error", "limit", "zero"]) {
    const part = document.createElement("i");
    part.className = name;
    tr.parts[name] = part;
    track.append(part);
  }
  tr.parts.bar.append(track);
  return tr;
}

function space() {
  const tr = document.createElement("tr");
  tr.className = "space";
  tr.setAttribute("aria-hidden", "true");
  const td = document.createElement("td");
  tr.append(td);
  return tr;
}

// Whether a part of a number may have come before the window, or of the window is not in it, so that its error is larger to one side.
const isUneven = ({ value, least, most = value }) => least !== value || most !== value;

// A count and its error, or the two ends between which it lies. What may be none is not written as if it were known.
function numbers(c, row, sd, newly, below, rate) {
  const ranged = isUneven(row) && sd !== null;
  const unsure = sd !== null && row.from <= 0;
  c.count.classList.toggle("uneven", ranged);
  c.count.classList.toggle("unsure", unsure);
  const [value, error] = sd === null ? [count(row.value), ""] : rated(row.value, 2 * sd, rate);
  set(c.count.firstChild, ranged ? between(row.from, row.to, rate) : unsure ? atMost(row.to, rate) : value);
  const off = ranged || unsure ? "" : error;
  set(c.sd, off);
  // With sums, whose rows are of two lines, there is room for it below.
  set(c.count.lastChild, below && off ? `± ${off}` : "");
  c.count.title = ranged || !unsure ? newly : `published: ${count(row.value)} ± ${about2sd(sd)}; noise alone may be as large`;
}

function sums(c, row, sum) {
  const { mean, interval, total, off, why, unsure } = sumWords(row, sum);
  for (const [cell, texts] of [[c.mean, [mean, interval]], [c.sum, [total, off]]]) {
    for (const [i, text] of texts.entries()) set(cell.children[i], text);
    cell.classList.toggle("unsure", unsure);
    cell.title = why;
  }
}

function place(element, left, width) {
  element.style.left = `${left}%`;
  if (width !== null) element.style.width = `${width}%`;
}

// Where an item comes in the list is written; where noise may have put it is what is seen.
function rank(cell, row) {
  set(cell.firstChild, `${row.rank}`);
  const [first, last] = row.places ?? [row.rank, row.rank];
  const tied = first !== last;
  cell.classList.toggle("tied", tied);
  const words = tied ? `rank ${first} to ${last ?? "below what is shown"}: counts this close cannot be told apart` : `rank ${first}`;
  if (cell.getAttribute("aria-label") === words) return;
  cell.setAttribute("aria-label", words);
  cell.title = tied ? words : "";
  cell.dataset.places = placesWords([first, last]);
}

const marked = ({ isNew, by }) => isNew || by !== 0;

function change(cell, { isNew, by }, newly) {
  set(cell, isNew ? "newly shown" : by > 0 ? `▲${by}` : by < 0 ? `▼${-by}` : "");
  const kind = isNew ? "new" : by > 0 ? "up" : by < 0 ? "down" : "";
  cell.className = `change ${kind}`;
  cell.title = isNew ? newly : "";
  const words = isNew ? `newly shown: ${newly}` : by > 0 ? `up ${by}` : by < 0 ? `down ${-by}` : "no change of rank beyond the noise";
  if (cell.getAttribute("aria-label") !== words) cell.setAttribute("aria-label", words);
}

// 1, 2 or 5 times a power of ten, not below what is given; whole: at least 1, as marks of counts.
export function nice(step, whole = true) {
  const power = 10 ** Math.floor(Math.log10(whole ? Math.max(step, 1) : step || 1));
  return [1, 2, 5, 10].find((times) => times * power >= step) * power;
}
