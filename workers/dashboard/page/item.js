// One item: its count and share, what has come lately, and its line over a range of time, alone or beside others.

import { Began } from "./windows.js";
import { beginnings } from "./chart.js";
import { linkFiles } from "./files.js";
import { isQuantile, point, summed } from "./model.js";
import { byId, button, element, named, set } from "./dom.js";
import { Lines, stepOf, stepWithin } from "./lines.js";
import { NoToken, asked } from "./net.js";
import { TIMES, canSubtract, ends, isCounted, least, mostHidden, share, shareOfAll } from "./noise.js";
import { CHOSEN, RANGES, bounds, counted, rangeName, rates } from "./ranges.js";
import { beginning, capital, dayWords, fillingWords, fromTo, gapWords, isMidnight, moment, timeZone } from "./when.js";
import { NOTHING, changeWords, count, duration, hiddenWords, isRunning, meanWords, ofUsers, oneLine, shareWords, span, timeOf } from "./words.js";

const HOUR_MS = 3600e3;
const DAY_MS = 86400e3;
const MOST = 6;
const MANY = 10;
const UNITS = ["tick", "hour", "epoch"];
const SUMMED = ["mean", "sum"];

export class Item {
  // hooks: onView(changes), onChange(), onNoToken(), now(), keys(), hasHistory(), readWords(), horizonOf(histogram), changes: Changes,
  // first(): when the oldest tick that is kept ended, or null; windows(): of the histogram, if it has no epochs;
  // totals(): other histograms, with epochs, that count the same; beganOf(id): when that series began, or null
  constructor(chart, view, hooks) {
    Object.assign(this, { chart, view, hooks, finals: [], finalsOf: "" });
    this.lines = new Lines(hooks);
    this.began = new Began(hooks);
    this.ranges();
    byId("unit").addEventListener("change", (event) => hooks.onView({ unit: event.target.value || null }));
    byId("add").addEventListener("submit", (event) => {
      event.preventDefault();
      this.add(byId("add-name").value);
    });
    byId("range-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const [from, to] = ["range-from", "range-to"].map((id) => new Date(byId(id).value).getTime());
      if (!(from < to)) return;
      byId("range-details").open = false;
      hooks.onView({ range: `${from}-${to}` });
    });
    linkFiles(byId("item-files"), () => this.asked(), hooks.onNoToken);
  }

  // The published counts that are drawn, or of which what is drawn is the difference; of a quantile those of all buckets.
  asked() {
    const { wanted } = this.lines;
    if (!wanted || !this.hooks.hasHistory()) return null;
    const { histogram, lines, from, to, lead, step } = wanted;
    const keys = [...new Set(lines.map((one) => one.key))];
    const named = this.shown.snapshot.items && !(this.shown.snapshot.edges && isQuantile(this.shown.item));
    const item = named ? [...new Set(lines.map((one) => one.item))] : [];
    const query = { histogram, key: keys, item, to: to ?? this.shown.snapshot.end };
    query.from = from === null ? null : Math.max(0, from - lead - Math.max(...lines.map((one) => one.shift)));
    return this.view.unit === "epoch" ? ["api/epochs", query] : ["api/history", { ...query, step }];
  }

  ranges() {
    this.buttons = [...RANGES].map(([name, [text]]) => {
      const made = button(text, "chip", () => this.hooks.onView({ range: name === "epoch" ? null : name }));
      made.dataset.range = name;
      return made;
    });
    byId("ranges").replaceChildren(...this.buttons);
  }

  // What is added may be an item, which goes before a stream key of the same name.
  add(text) {
    const { view } = this;
    const isItem = this.names?.includes(text) && text !== this.shown?.item;
    const isKey = !isItem && this.hooks.keys().includes(text) && text !== view.key;
    byId("add-wrong").hidden = isItem || isKey;
    if (!isItem && !isKey) return;
    byId("add-name").value = "";
    const name = isItem ? "with" : "keys";
    if (view.with.length + view.keys.length + 2 > MOST || view[name].includes(text)) return;
    this.hooks.onView({ [name]: [...view[name], text] });
  }

  take(snapshot) {
    this.lines.take(snapshot);
  }

  again() {
    this.lines.again();
    this.finalsOf = "";
  }

  // snapshot: what the board shows; item: whose line; texts: {empty, half, measured, axis, name}; exact: Exact or null; before: the epoch
  // before it that is drawn beside it, {shift, name}, or null; paused: no newer tick is wanted; origin: when the series began;
  // windowed: the changes that the board shows, or null.
  show(snapshot, item, texts, { exact, before, paused, origin, windowed }) {
    // Of what the line is where the board is of a window: of as much time before each point, or of all since then.
    const { change } = windowed ?? {};
    const span = !change || texts.measured ? null : this.view.window !== null ? { ms: windowed.end - change.from } : { since: change.from };
    Object.assign(this, { origin, begin: change?.from ?? origin, span: null });
    this.shown = { snapshot, item };
    this.names = snapshot.items?.map(([label]) => label) ?? [];
    const counts = Boolean(snapshot.items) && !(snapshot.edges && isQuantile(item));
    const running = counts && isRunning(snapshot.mechanism) && !snapshot.window;
    const unit = running && this.view.unit !== null && UNITS.includes(this.view.unit) ? this.view.unit : null;
    const what = counts && snapshot.sums && SUMMED.includes(this.view.unit) ? this.view.unit : null;
    if (running && unit === null && what === null) this.span = span;
    this.controls(snapshot, running, unit ?? what, paused);
    if (snapshot.window) this.inWindows(snapshot, item, counts, paused);
    else this.changes(snapshot, item, counts && canSubtract(snapshot), paused, windowed);
    // A quantile is one of the counts, whatever the board's window is.
    const now = this.hooks.now();
    const since = texts.measured && isRunning(snapshot.mechanism) && !snapshot.window ? `At ${moment(snapshot.end, now)}: of all that was counted since ${moment(origin, now)}${windowed ? ", not in the window alone" : ""}.` : "";
    const mean = counts ? meanWords(windowed ?? snapshot, item, this.hooks.fieldName()) : "";
    set(byId("item-words"), counts ? [this.hidden(snapshot, item), this.shareOf(windowed ?? snapshot, item), mean].filter((one) => one).join(" ") : since);
    const wanted = this.wanted(snapshot, item, { before: unit === null ? before : null, paused, unit });
    this.lines.follow(wanted);
    this.loadFinals(wanted, unit !== null);
    const axis = what === "mean" ? "Mean" : "Sum";
    const row = this.span && windowed.items.find(([label]) => label === item);
    this.row = row ? { end: windowed.end, value: row[1], ends: ends(windowed, ...row), isNew: change.new.includes(item) } : null;
    this.draw(wanted, snapshot, what === null ? texts : { ...texts, measured: true, half: "Interval", axis }, { exact, unit, before, what });
  }

  wanted(snapshot, item, { before, paused, unit }) {
    const { view } = this;
    const width = snapshot.end - snapshot.start;
    const name = rangeName(view.range, this.ofWindow(snapshot));
    const range = bounds(name, snapshot, this.begin, paused);
    const { to } = range;
    // Beside an epoch so far is all of the one before it.
    const until = before && name === "epoch" && to === null ? beginning(snapshot) + before.shift : (to ?? snapshot.end);
    // Of counts that began in the range less is drawn.
    const first = this.hooks.first();
    const since = snapshot.window && range.from !== null ? Math.max(range.from, first ?? range.from) : (range.from ?? first ?? beginning(snapshot));
    const span = Math.max(width, until - since);
    const { ms } = this.span ?? {};
    const free = unit === "hour" ? (stepOf(span, Math.max(HOUR_MS, width)) ?? Math.max(HOUR_MS, width)) : stepOf(span, width);
    const step = ms ? stepWithin(free, ms) : free;
    // Steps end at whole hours and days, where epochs end too, so that of an ended epoch the last step shows what was final.
    const from = step === null || range.from === null ? range.from : Math.floor(range.from / step) * step;
    const lines = [
      { key: view.key, item, shift: 0 },
      ...view.with.filter((one) => one !== item).map((one) => ({ key: view.key, item: one, shift: 0 })),
      ...view.keys.filter((one) => one !== view.key).map((one) => ({ key: one, item, shift: 0 })),
      ...(before ? [{ key: view.key, item, shift: before.shift }] : []),
    ].slice(0, MOST);
    const sliding = to === null && from !== null && name !== "epoch" ? name : from;
    // What was counted since the beginning, or in the first interval, takes the count there.
    const lead = unit === "epoch" ? 0 : (ms ?? 0) + (step ?? width);
    return { name: JSON.stringify([view.histogram, lines, sliding, to, step, lead]), histogram: view.histogram, lines, from, to, until, step, width, lead, whole: from === null || name === "epoch" };
  }

  draw(wanted, snapshot, texts, { exact, unit, before, what }) {
    const { lines: asked } = wanted;
    let gaps = [];
    const lines = asked.map(({ key, item, shift }, index) => {
      let points = this.lines.points(index);
      if (unit === "epoch") points = this.wholes([...(this.finals[index] ?? []).filter((one) => one.id !== snapshot.id && one.end > (wanted.whole ? -Infinity : wanted.from)), ...points.slice(-1)], snapshot);
      else if (this.span) points = this.inSpan(points, snapshot, index === 0 ? this.row : null);
      else if (unit !== null) points = rates(points, this.finals[index] ?? [], wanted.step ?? wanted.width, { id: snapshot.id, at: this.origin });
      if (index === 0) gaps = unit === null || unit === "epoch" ? gapsIn(points, wanted) : points.gaps;
      // A total begins with the tick at which the range does, if it is of the same series: what came since is the difference from it.
      const at = unit === null && !shift && !this.span ? points.at(-1)?.id : null;
      points = points.filter((one) => one.end > (wanted.from ?? -Infinity) || (one.id === at && one.end === wanted.from));
      if (exact && index === 0 && unit === null && !this.span) points = points.map((one) => ({ ...one, exact: exact.at(one.end)?.counts.get(item) }));
      if (unit !== null) points = points.map((one) => ({ ...one, open: this.isOpen(one, wanted, unit, snapshot) }));
      // A series that began later than its epoch is compared from there on, as on the board.
      if (shift) points = withPoint(points.filter((one) => !before?.snapshot || one.id === before.snapshot.id), before?.snapshot ? point(before.snapshot, item) : null, shift);
      if (what !== null) points = points.map((one) => summed(one, what));
      const own = texts.name && item === asked[0].item ? texts.name : oneLine(item) || NOTHING.empty;
      const name = shift ? (before?.name ?? "before") : key !== this.view.key ? `${own} of ${oneLine(key)}` : own;
      return { name, kind: shift ? "before" : index, points, key, item, shift };
    });
    const loading = this.lines.loading && !lines.some((line) => line.points.some((p) => p.value !== null));
    const joined = manyEpochs(lines[0].points);
    const empty = unit === null || unit === "epoch" ? texts.empty : NOTHING.counted;
    const axis = texts.axis ?? (unit === null && !this.span ? "Count" : "Counted");
    const { window } = snapshot;
    const fills = window ? this.fills(lines[0].points, window.ms) : [];
    this.chart.show(lines, { ...texts, axis, numbered: !window, fromZero: unit !== null || this.span !== null || (Boolean(window) && !texts.measured), empty: loading ? NOTHING.asking : empty }, {
      step: unit === "epoch" ? Infinity : (wanted.step ?? wanted.width),
      joined,
      current: snapshot.id,
      fills,
    });
    this.legend(lines);
    const falls = !texts.measured && unit === null && !window && !this.span && lines[0].points.some((one, i, all) => i > 0 && one.id === all[i - 1].id && one.value !== null && one.value < all[i - 1].value);
    // It was not shown where its first interval began: that is not drawn, and said.
    const first = lines[0].points.find((one) => one.value === null && (one.total ?? null) !== null);
    const began = first ? { end: first.end, most: first.total + TIMES * (first.sd ?? 0) } : null;
    const unseen = unit === "epoch" ? [] : lines[0].points.filter((one) => one.value === null && !one.shown);
    const most = Math.max(...unseen.map((one) => one.most ?? -Infinity));
    const hidden = !unseen.length ? null : texts.measured ? "Where it cannot be said, nothing is drawn" : `${this.whenHidden(lines[0].points)} the item was not shown, nothing is drawn${most <= 0 ? "" : window ? `: ${hiddenWords(most, window)}` : `: its total was at most about ${count(Math.ceil(most))}`}`;
    const again = !joined && beginnings(lines[0].points).length > 0;
    this.note(wanted, unit, { joined, falls, gaps, hidden, again, window, began, fills, measured: texts.measured });
  }

  // When an item was not shown: until it came, since it went, or now and then.
  whenHidden(points) {
    const isShown = points.map((one) => one.value !== null || one.shown);
    const [first, last] = [isShown.indexOf(true), isShown.lastIndexOf(true)];
    const without = isShown.indexOf(false, Math.max(first, 0));
    const now = this.hooks.now();
    if (first > 0 && without < 0) return `Before ${moment(points[first].end, now)}`;
    if (first === 0 && without > last) return `Since ${moment(points[without].end, now)}`;
    return "Where";
  }

  // From when to when the window of the points was not full, as counting had begun within it.
  fills(points, ms) {
    return [...new Set(points.map((one) => one.id))].flatMap((id) => {
      const began = this.hooks.beganOf(id);
      return began !== null && points.some((one) => one.id === id && one.end - ms < began) ? [[began, began + ms]] : [];
    });
  }

  // A snapshot as if its counts were those of the window that the board shows.
  ofWindow(snapshot) {
    return this.span?.ms ? { ...snapshot, window: { ms: this.span.ms } } : snapshot;
  }

  // What was counted before each point in the window of the board; at its end it is what the board says.
  inSpan(points, { id }, row) {
    const found = counted(points, this.span, { id, at: this.origin });
    const last = found.at(-1);
    if (!row || last?.end !== row.end || row.isNew) return found;
    return [...found.slice(0, -1), { ...last, value: row.value, half: (row.ends[1] - row.ends[0]) / 2 }];
  }

  // What was counted in each epoch or generation, over the time in which it was; of many epochs a line goes along.
  wholes(points, { id }) {
    if (manyEpochs(points)) return points;
    const found = points.map((one) => ({ ...one, from: (one.id === id ? this.origin : one.began) ?? undefined }));
    const lengths = found.map((one) => one.end - one.from);
    const longest = Math.max(...lengths);
    // Times of unlike length are compared by what was counted in a day of them, or an hour.
    if (!(longest > 1.01 * Math.min(...lengths))) return found;
    const [ms, each] = longest >= 2 * DAY_MS ? [DAY_MS, "day"] : [HOUR_MS, "hour"];
    return found.map((one, i) => (one.value === null ? one : { ...one, rate: `${count((one.value * ms) / lengths[i])}/${each}` }));
  }

  // Whether the interval of a point is not over.
  isOpen({ id, from, end }, { step, width }, unit, snapshot) {
    if (unit === "epoch") return id === snapshot.id && snapshot.tick !== this.hooks.horizonOf(snapshot.histogram);
    return end === snapshot.end && end - from < 0.99 * (step ?? width);
  }

  // What an item may have counted that a snapshot does not show.
  hidden(snapshot, item) {
    const words = hiddenWords(mostHidden(snapshot), snapshot.window);
    return !words || snapshot.items.some(([label]) => label === item) ? "" : `Not shown: ${words}.`;
  }

  legend(lines) {
    const list = byId("series");
    list.hidden = lines.length < 2;
    const text = JSON.stringify(lines.map((line) => [line.name, line.kind, line.key, line.item]));
    if (text === this.legendText) return;
    this.legendText = text;
    list.replaceChildren(
      ...lines.map((line, index) => {
        const entry = element("li", undefined, `series-${line.kind}`);
        entry.append(element("i", "", "swatch"), named(line.name));
        if (index > 0) {
          const off = button("×", "plain small", () => this.remove(line));
          off.setAttribute("aria-label", `Take ${line.name} out of the chart`);
          entry.append(off);
        }
        return entry;
      }),
    );
  }

  remove(line) {
    const { view } = this;
    if (line.shift) this.hooks.onView({ beside: null });
    else if (line.key !== view.key) this.hooks.onView({ keys: view.keys.filter((one) => one !== line.key) });
    else this.hooks.onView({ with: view.with.filter((one) => one !== line.item) });
  }

  note(wanted, unit, { joined, falls, gaps, hidden, again, window, began, fills, measured }) {
    const words = [];
    const { lines } = this;
    if (!this.hooks.hasHistory()) words.push(`${this.hooks.readWords() || "There is no history here. "}Only the last ticks are shown.`);
    else if (!lines.complete && lines.reading) words.push("Ticks may be missing: the history is still being read.");
    else if (!lines.complete && !gaps.length) words.push("Something may be missing: it was gone before this dashboard read it.");
    for (const name of ["hour", "tick"]) {
      const longer = name === unit && wanted.step !== null && !(name === "hour" && wanted.step === HOUR_MS);
      set(byId("unit").querySelector(`[value="${name}"]`), longer ? `counted in every ${span(wanted.step)}` : `counted in each ${name}`);
      if (longer) words.push(`For so long a range, what was counted in every ${span(wanted.step)} is drawn.`);
    }
    const every = wanted.step ?? wanted.width;
    const each = unit === null ? null : every === HOUR_MS ? "hour" : span(every);
    if (unit !== "epoch") words.push(...gapWords(gaps, this.hooks.now(), each, unit === null && wanted.step !== null, window));
    if (fills.length) words.push(fillingWords(fills, window.ms, this.hooks.now()));
    else if (again) words.push(window ? `At each vertical dotted line counting began anew: from there on the ${timeOf(window.ms)} fills again.` : "At each vertical dotted line counts began at zero again.");
    if (window) words.push(`Each point is ${ofUsers(window) ? "how many different users there were" : "of what came"} in the ${timeOf(window.ms)} before it.`);
    if (this.span?.ms) words.push(`Each point is of what was counted in the ${timeOf(this.span.ms)} before it.`);
    if (began) words.push(`Until ${moment(began.end, this.hooks.now())} not drawn: the item was not shown where that interval began; at most ${count(began.most)} were counted in it.`);
    if (hidden) words.push(`${hidden}.`);
    if (measured) words.push("The true value lies in the band about 19 times out of 20.");
    else if (this.shown.snapshot.sd !== null && this.shown.snapshot.items) words.push(`${capital(this.hooks.bandWords(this.shown.snapshot))}.`);
    if (falls) words.push("Where a total falls, that is noise: the true count never falls within an epoch.");
    if (["hour", "tick"].includes(unit) && !this.shown.snapshot.windows?.some((one) => one.ms === every)) words.push(`Bands are upper bounds: the settings have no window of ${span(every)}.`);
    if (joined && unit === null) words.push("Counts begin at zero with each epoch: a point is what its epoch had reached.");
    if (wanted.step !== null && unit === null) words.push(`The last tick of every ${span(wanted.step)} is drawn.`);
    words.push(`Times are in ${timeZone()}.`);
    set(byId("chart-note"), words.join(" "));
  }

  controls(snapshot, running, unit, paused) {
    const name = rangeName(this.view.range, this.ofWindow(snapshot));
    const now = this.hooks.now();
    const { begin } = this;
    const { window } = snapshot;
    const { window: sliding } = this.ofWindow(snapshot);
    const first = this.hooks.first();
    const kept = first === null ? Infinity : snapshot.end - first;
    const midnight = `midnight UTC${dayWords(begin, now) === "today" ? "" : `, ${dayWords(begin, now)}`}`;
    const since = isRunning(snapshot.mechanism) && this.hooks.hasHistory() ? `Since ${isMidnight(begin) ? midnight : moment(begin, now)}` : "Last ticks";
    for (const made of this.buttons) {
      const { range } = made.dataset;
      // Of more than is kept there is "All".
      const ms = RANGES.get(range)[1];
      const isTooLong = range !== name && ms > HOUR_MS && ms >= kept;
      made.hidden = isTooLong || (!this.hooks.hasHistory() && !["hour", "epoch"].includes(range)) || (Boolean(sliding) && range === "epoch");
      made.setAttribute("aria-pressed", `${range === name}`);
      if (range === "epoch") set(made, since);
      if (range === "hour") set(made, paused ? "The hour before" : RANGES.get("hour")[0]);
    }
    byId("range-details").hidden = byId("item-files").hidden = !this.hooks.hasHistory();
    const chosen = CHOSEN.exec(name);
    byId("range-open").setAttribute("aria-pressed", `${chosen !== null}`);
    set(byId("range-open"), chosen ? fromTo(Number(chosen[1]), Number(chosen[2]), now) : "Choose ...");
    byId("unit-label").hidden = !(running || (window && snapshot.sums)) || !this.hooks.hasHistory();
    const { span: chosenSpan } = this.view;
    const total = chosenSpan === null ? "total so far" : chosenSpan.window ? `counted in the ${this.span?.ms ? timeOf(this.span.ms) : chosenSpan.window} before` : "counted since then";
    const drawn = window ? { "": "count", mean: "mean", sum: "sum" } : { "": total, mean: "mean so far", sum: "sum so far" };
    for (const [name, text] of Object.entries(drawn)) set(byId("unit").querySelector(`[value="${name}"]`), window ? `${text} in the ${timeOf(window.ms)} before` : text);
    for (const name of UNITS) byId("unit").querySelector(`[value="${name}"]`).hidden = Boolean(window);
    for (const name of SUMMED) byId("unit").querySelector(`[value="${name}"]`).hidden = !snapshot.sums;
    byId("unit").value = unit ?? "";
    const options = [...this.names.slice(0, 200), ...this.hooks.keys().filter((one) => one !== this.view.key).slice(0, 200)];
    const text = JSON.stringify(options);
    byId("add").hidden = options.length < 2 || !snapshot.items;
    if (text === this.optionsText) return;
    this.optionsText = text;
    byId("add-names").replaceChildren(
      ...options.map((one) => {
        const made = document.createElement("option");
        made.value = one;
        return made;
      }),
    );
  }

  shareOf(snapshot, item) {
    const found = snapshot.items.find(([label]) => label === item);
    if (!found || snapshot.items.length < 2) return "";
    const { change, all_items: all } = snapshot;
    const within = change || snapshot.window;
    const said = (part, whole) => (part === null ? "" : `${shareWords(part, whole)}.`);
    // How much of a newly shown item came in the window is unknown.
    if (change?.new.includes(item)) return "";
    // In a window there may be nothing of an item that is shown.
    if (snapshot.window && !(snapshot.sd !== null && found[1] > TIMES * snapshot.sd)) return "";
    // Somebody with several items is one of the users of each.
    if (ofUsers(snapshot.window)) return "";
    if (all) return said(shareOfAll(found[1], snapshot.sd, all), `all that was counted, shown or not${within ? ", in the window" : ""}`);
    if ((change?.new.length && change.threshold === null) || change?.last?.absent.length) return "";
    const part = share(found[1], snapshot.items, snapshot.sd, change ? change.new.length * change.threshold : 0);
    return said(part, within ? "what the shown items counted in the window" : "the total of what is shown");
  }

  // Of a histogram without epochs: what was counted in its other windows at the same time, and since epochs began in others that count the
  // same.
  inWindows(snapshot, item, offered, paused) {
    const { key, end } = snapshot;
    const others = offered ? [...this.hooks.windows(), ...this.hooks.totals()].filter((one) => one.histogram !== snapshot.histogram) : [];
    const said = others.flatMap(({ histogram, window_ms: ms }) => {
      // The newest tick of another topic may come a moment later than this one.
      const which = paused ? {} : { at: null, limit: 1 };
      const found = this.hooks.changes.of({ histogram, key, id: null, end }, which, item)?.snapshot;
      const value = found?.items?.find(([label]) => label === item)?.[1];
      if (value === undefined || found.sd === null || !isRunning(found.mechanism)) return [];
      const began = ms === null ? this.began.of(found) : null;
      if (ms === null && began === null) return [];
      // All windows of a histogram begin to count together.
      const late = ms !== null && end - ms < this.origin ? `, but only since ${moment(this.origin, this.hooks.now())}, when counting began` : "";
      const when = ms === null ? `since ${isMidnight(began) ? "midnight UTC" : moment(began, this.hooks.now())} (${histogram})` : `in the ${paused ? `${timeOf(ms)} before` : `last ${timeOf(ms)}`}${late}`;
      const [low, high] = ends(found, item, value);
      return [changeWords(when, { value, low, high, isNew: false, sure: isCounted(value, found.sd, found.total_items ?? 1) })];
    });
    this.list(said);
  }

  list(said) {
    byId("changes").hidden = !said.length;
    const text = JSON.stringify(said);
    if (text === this.changesText) return;
    this.changesText = text;
    byId("changes").replaceChildren(...said.map((one) => element("li", one.text, one.kind)));
  }

  // What was counted in the windows that the snapshot names, else in the last hour, and in that of the board.
  changes(snapshot, item, offered, paused, windowed) {
    const width = snapshot.end - snapshot.start;
    const named = (snapshot.windows ?? [{ ms: HOUR_MS, ticks: Math.round(HOUR_MS / width) }]).filter((one) => one.ticks >= 1 && (one.ticks < snapshot.tick || (one.ticks > snapshot.tick && snapshot.previous_id)));
    const spans = named.map(({ ms }) => ({ window: duration(ms) }));
    const chosen = this.view.span;
    if (chosen && !spans.some((one) => one.window === chosen.window)) spans.push(chosen);
    const now = this.hooks.now();
    const said = (offered ? spans : []).flatMap((one) => {
      // What the board shows is not asked for twice.
      const same = windowed && one.window === chosen.window && one.since === chosen.since;
      const found = same ? windowed : this.hooks.changes.of(snapshot, one, item)?.snapshot;
      const row = found?.items.find(([label]) => label === item);
      if (!row || found.sd === null) return [];
      const { from } = found.change;
      const ms = found.end - from;
      const when = one.window === duration(ms) ? `in the ${paused ? `${timeOf(ms)} before` : `last ${timeOf(ms)}`}` : `since ${moment(from, now)}`;
      const [low, high] = ends(found, ...row);
      const sure = isCounted(least(found.change, ...row), found.sd, snapshot.total_items ?? this.names.length);
      return [changeWords(when, { value: row[1], low, high, isNew: found.change.new.includes(item), sure })];
    });
    this.list(said);
  }

  // The last points of the epochs, for rates.
  async loadFinals(wanted, needed) {
    const name = JSON.stringify([wanted.histogram, wanted.lines]);
    if (!needed || name === this.finalsOf || !this.hooks.hasHistory()) return;
    this.finalsOf = name;
    this.finals = [];
    const found = await Promise.all(
      wanted.lines.map(async ({ key, item }) => {
        try {
          const answer = await asked("api/epochs", { histogram: wanted.histogram, key, item, limit: 1000 });
          if (answer.status === 503) this.finalsOf = null; // asked for again with the next tick
          return answer.status === 200 ? answer.body.epochs.map((one) => ({ ...point(one, item), began: one.began, final: one.final })) : [];
        } catch (error) {
          if (error instanceof NoToken) this.hooks.onNoToken();
          return [];
        }
      }),
    );
    if (name !== this.finalsOf) return;
    this.finals = found;
    this.hooks.onChange();
  }
}

// The line of the previous epoch, with the tick that corresponds to the shown one even if no step falls on it.
function withPoint(points, one, shift) {
  if (one === null) return points;
  const moved = { ...one, end: one.end + shift, start: one.start + shift, was: one.end };
  return [...points.filter((p) => p.end < moved.end), moved, ...points.filter((p) => p.end > moved.end)];
}

// From when to when ticks are missing between two points of one series.
const gapsIn = (points, { step, width }) => points.flatMap((one, i, all) => (i > 0 && one.id === all[i - 1].id && one.tick > all[i - 1].tick + 1 && one.end - all[i - 1].end > 2.5 * (step ?? width) ? [[all[i - 1].end, one.end]] : []));

// Whether hardly more than one point of each epoch is drawn: then the epochs are what a line goes along.
function manyEpochs(points) {
  const ids = new Set(points.map((one) => one.id)).size;
  return ids > MANY && ids > points.length / 2;
}
