// What the chart shows: one line for each pair of stream key and item, over a range of time, from the history and from what comes live.

import { point } from "./model.js";
import { NoToken, asked } from "./net.js";

// Points of a line: more than a screen shows, few enough to be quick. The server gives the last tick of each step, never an average.
const POINTS = 500;
const LIMIT = 10000;
const HELD = 120;
const OTHERS_MS = 5000;
const SOON_MS = 2000;
const STEPS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].map((s) => s * 1000);

// The width of a step with which a range has few enough of them; null: every tick.
export function stepOf(span, width) {
  if (span / width <= POINTS) return null;
  return STEPS_MS.find((step) => step > width && span / step <= POINTS) ?? Math.ceil(span / POINTS / STEPS_MS.at(-1)) * STEPS_MS.at(-1);
}

// One that is as wide at most, and of which a window has a whole number.
export const stepWithin = (step, ms) => (step === null || ms % step === 0 ? step : (STEPS_MS.findLast((one) => one < step && ms % one === 0) ?? null));

export class Lines {
  // hooks: onChange(), onNoToken(), hasHistory()
  constructor(hooks) {
    this.hooks = hooks;
    this.wanted = null;
    this.of = [];
    this.asked = 0;
    this.complete = true;
    this.reading = false;
    this.loading = false;
    this.othersAt = 0;
    this.timer = 0;
  }

  // wanted: {name, histogram, lines: [{key, item, shift}], from, to, until, step, lead}; of the same name it is only followed on. to: null
  // for live; until: where what is moved beside today's ends; lead: so much before from is wanted too, in whole steps.
  follow(wanted) {
    const same = this.wanted?.name === wanted.name;
    this.wanted = wanted;
    if (same) return;
    this.of = wanted.lines.map(() => []);
    this.load();
  }

  // The points of a line within the range, oldest first, those of another time moved beside today's.
  points(index) {
    const { from, to, until, lead, lines } = this.wanted;
    const { shift } = lines[index];
    const points = this.of[index] ?? [];
    const shown = shift ? points.map((one) => ({ ...one, end: one.end + shift, start: one.start + shift, was: one.end })) : points;
    return shown.filter((one) => (from === null || one.end > from - lead) && (shift ? one.end <= until : to === null || one.end <= to));
  }

  // What is not in the history yet comes.
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.again(), SOON_MS);
  }

  again() {
    if (this.wanted) this.load();
  }

  async load() {
    const wanted = this.wanted;
    const number = ++this.asked;
    this.loading = true;
    const groups = new Map();
    for (const [index, line] of wanted.lines.entries()) {
      const name = JSON.stringify([line.key, line.shift]);
      groups.set(name, [...(groups.get(name) ?? []), index]);
    }
    const answers = await Promise.all([...groups.values()].map((indexes) => this.loadGroup(wanted, indexes, number)));
    if (number !== this.asked) return;
    this.complete = answers.every((one) => one?.complete ?? true);
    this.reading = answers.some((one) => (one?.reading ?? null) !== null);
    this.loading = false;
    this.hooks.onChange();
  }

  // Returns the answer from the history, or null.
  async loadGroup(wanted, indexes, number) {
    const { key, shift } = wanted.lines[indexes[0]];
    const items = indexes.map((index) => wanted.lines[index].item);
    const base = { histogram: wanted.histogram, key };
    const query = { ...base, item: items, step: wanted.step, limit: LIMIT };
    query.from = wanted.from === null ? null : Math.max(0, wanted.from - wanted.lead - shift);
    query.to = shift ? wanted.until - shift : wanted.to;
    const live = wanted.to === null && !shift;
    const [kept, held] = await Promise.all([
      this.hooks.hasHistory() ? this.quietly(asked("api/history", query)) : null,
      shift ? null : this.quietly(asked("api/snapshots", { ...base, item: items, limit: HELD })),
    ]);
    if (number !== this.asked) return;
    if (kept?.status === 503) this.soon();
    const history = kept?.status === 200 ? snapshotsOf(kept.body) : [];
    const last = history.at(-1)?.end ?? -Infinity;
    // Of the step in which a held tick lies, later ticks would replace it.
    const recent = (held?.status === 200 ? held.body.snapshots : []).filter((one) => one.end > last && one.end <= (wanted.to ?? Infinity));
    for (const [place, index] of indexes.entries()) {
      const loaded = [...history, ...recent].map((one) => point(one, items[place]));
      const newest = loaded.at(-1)?.end ?? -Infinity;
      const came = live ? this.of[index].filter((one) => one.end > newest) : [];
      this.of[index] = [...loaded, ...came].reduce((points, one) => put(points, one, wanted), []);
    }
    return kept?.status === 200 ? kept.body : null;
  }

  // Takes a snapshot of the stream that is followed.
  take(snapshot) {
    const { wanted } = this;
    if (!wanted || wanted.to !== null) return;
    let others = false;
    for (const [index, { key, item, shift }] of wanted.lines.entries()) {
      if (shift) continue;
      if (key !== snapshot.key) {
        others = true;
        continue;
      }
      const one = point(snapshot, item);
      // It may be among the items that were not sent.
      if (one.cut) this.again();
      else this.of[index] = put(this.of[index], one, wanted);
    }
    if (others && performance.now() - this.othersAt > OTHERS_MS) {
      this.othersAt = performance.now();
      this.again();
    }
  }

  async quietly(answer) {
    try {
      return await answer;
    } catch (error) {
      if (error instanceof NoToken) this.hooks.onNoToken();
      return null; // the stream notices a server that is gone, and what is missing is asked for then
    }
  }
}

// The entries of the history in the form of snapshots with the items that were asked for.
function snapshotsOf({ entries, items, series }) {
  const shared = new Map(series.map((one) => [one.id, one]));
  return entries.map((entry) => {
    const shown = entry.counts && [...items.keys()].filter((index) => entry.counts[index] !== null);
    return {
      ...entry,
      mechanism: shared.get(entry.id)?.mechanism,
      edges: shared.get(entry.id)?.edges ?? undefined,
      items: shown?.map((index) => [items[index], entry.counts[index]]),
      sums: entry.sums && shown?.map((index) => entry.sums[index]),
    };
  });
}

// Adds a point at the end of a line; of each step the last one stays.
function put(points, one, { step, from }) {
  const last = points.at(-1);
  if (last && one.end <= last.end) {
    if (one.id === last.id) return points;
    // Another series that goes back in time: the topic was started again.
    return [...points.filter((other) => other.end < one.end), one];
  }
  const stepAt = (end) => Math.ceil((end - (from ?? 0)) / step);
  if (last && step && last.id === one.id && stepAt(last.end) === stepAt(one.end)) points.pop();
  points.push(one);
  return points;
}
