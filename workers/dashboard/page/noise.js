// What noise explains, and what it does not: nothing is marked as news that lies within two standard deviations of a difference.

import { thresholdIsCount, thresholdStays } from "./words.js";

export const TIMES = 2;

// The least difference of two counts of one snapshot that noise does not explain: their noise is independent.
const margin = (sd) => TIMES * Math.SQRT2 * sd;

// For a whole board: how many standard deviations of a difference must lie between two items, then and now, so that of a board of
// which all items are equal at most one in twenty has a mark. A pair is marked with a chance of Q(z)^2, Q(z) < exp(-z^2 / 2) / 2, and
// there are fewer than n^2 pairs, in order: n^2 exp(-z^2) / 4 <= 1 / 20.
const boardTimes = (n) => Math.max(TIMES, Math.sqrt(Math.log(5 * n * n)));

// The standard deviation of the difference of one item's counts at two ticks: published, or else a bound. Within an epoch the two share
// noise, however much: whatever they share, it is at most the sum. Of two epochs nothing is shared.
export function differenceSd(newer, older) {
  if (newer.sd === null || older.sd === null) return null;
  if (newer.id !== older.id) return Math.hypot(newer.sd, older.sd);
  const window = newer.windows?.find((one) => one.ticks === newer.tick - older.tick);
  return window ? window.sd : newer.sd + older.sd;
}

// The places that each row may have had without noise: [first, last], the last null where it may be beyond what was sent.
export function places(items, total, sd) {
  if (sd === null) return items.map(() => null);
  const off = margin(sd);
  const values = items.map(([, value]) => value).sort((a, b) => b - a);
  const above = (limit) => count(values, (value) => value > limit);
  const least = values.at(-1);
  return items.map(([, value]) => {
    const last = count(values, (one) => one >= value - off);
    return [1 + above(value + off), total > values.length && least >= value - off ? null : last];
  });
}

// How many of the largest values, which come first, something is true of.
function count(values, what) {
  let [from, to] = [0, values.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (what(values[middle])) from = middle + 1;
    else to = middle;
  }
  return from;
}

// How items have moved since an older snapshot of the same epoch.
export class Moves {
  constructor(snapshot, older) {
    this.known = Boolean(older?.items) && snapshot.sd !== null && older.sd !== null;
    if (!this.known) return;
    this.snapshot = snapshot;
    this.older = older;
    this.before = new Map(older.items);
    this.unseen = unseen(older);
    this.found = new Map();
  }

  // {isNew, by}: by counts the items that it has passed for certain, less those that have passed it; both ways noise is allowed for.
  of(label, value) {
    if (!this.known) return { isNew: false, by: 0 };
    let found = this.found.get(label);
    if (!found) this.found.set(label, (found = this.look(label, value)));
    return found;
  }

  look(label, value) {
    const was = this.before.get(label);
    if (was === undefined) return { isNew: this.isNew(value), by: 0 };
    const times = boardTimes(this.snapshot.items.length) / TIMES;
    const [now, then] = [times * margin(this.snapshot.sd), times * margin(this.older.sd)];
    let by = 0;
    for (const [other, count] of this.snapshot.items) {
      if (other === label) continue;
      // What was not shown had at most the count that something needs to be shown.
      const had = this.before.get(other) ?? this.unseen;
      if (had === null) continue;
      if (had - was > then && value - count > now && this.before.has(other)) by += 1;
      if (was - had > then && count - value > now) by -= 1;
    }
    return { isNew: false, by };
  }

  isNew(value) {
    if (thresholdStays(this.snapshot.mechanism)) return true;
    const off = differenceSd(this.snapshot, this.older);
    return this.unseen !== null && off !== null && value - this.unseen > TIMES * off;
  }
}

// The most that an item had which a snapshot does not show; null where that cannot be said.
function unseen(snapshot) {
  if (snapshot.threshold !== null && thresholdIsCount(snapshot.mechanism) && !(snapshot.total_items > snapshot.items.length)) return snapshot.threshold;
  const values = snapshot.items.map(([, value]) => value);
  return values.length ? Math.min(...values) : null;
}

// The share of a count in the total of what is shown, with two standard deviations; null where the total itself may be noise.
export function share(value, items, sd) {
  if (sd === null || !items.length) return null;
  const total = items.reduce((sum, [, one]) => sum + one, 0);
  if (total <= 2 * TIMES * sd * Math.sqrt(items.length)) return null;
  const part = value / total;
  // The noise of the total has that of the count in it.
  const off = (sd / total) * Math.sqrt((1 - part) ** 2 + part ** 2 * (items.length - 1));
  return { part, half: TIMES * off };
}
