// What noise explains, and what it does not: nothing is marked as news that lies within two standard deviations of a difference.

import { subtracts, thresholdIsCount, thresholdStays } from "./words.js";

export const TIMES = 2;
// Counts of any snapshot with windows differ from the truth by noise alone. Those of one window overlap with those of the next tick.
export const canSubtract = (snapshot) => Boolean(snapshot.items && !snapshot.window && (snapshot.windows || subtracts(snapshot.mechanism)));

// The least difference of two counts of one snapshot that noise does not explain: their noise is independent.
const margin = (sd) => TIMES * Math.SQRT2 * sd;

// For a whole board: how many standard deviations of a difference must lie between two items, then and now, so that of a board of
// which all items are equal at most one in twenty has a mark. A pair is marked with a chance of Q(z)^2, Q(z) < exp(-z^2 / 2) / 2, and
// there are fewer than n^2 pairs, in order: n^2 exp(-z^2) / 4 <= 1 / 20.
const boardTimes = (n) => Math.max(TIMES, Math.sqrt(Math.log(5 * n * n)));

// The same for two boards that share noise, however much of it: a pair is then marked with a chance of Q(z) at most, of n^2 pairs.
const sharedTimes = (n) => Math.max(TIMES, Math.sqrt(2 * Math.log(10 * n * n)));

// For a window's board: how many standard deviations from 0 a change must be, so that of a board of n rows in which nothing was counted
// at most one in twenty has a row beyond it: n exp(-z^2 / 2) <= 1 / 20, by the same bound on Q, two-sided.
const rowTimes = (n) => Math.sqrt(2 * Math.log(20 * Math.max(1, n)));
export const isCounted = (least, sd, rows) => sd !== null && least > rowTimes(rows) * sd;

// The standard deviation of the difference of one item's counts at two ticks: published, or else a bound. Within an epoch the two share
// noise, however much: whatever they share, it is at most the sum. Of two epochs nothing is shared.
export function differenceSd(newer, older) {
  if (newer.sd === null || older.sd === null) return null;
  if (newer.id !== older.id) return Math.hypot(newer.sd, older.sd);
  const window = newer.windows?.find((one) => one.ticks === newer.tick - older.tick);
  return window ? window.sd : newer.sd + older.sd;
}

// The places that each row may have had without noise: [first, last], the last null where it may be beyond what was sent.
// rows: {value, least, most}; from least to most, else the value: what it may be besides noise, where some of it is not known.
export function places(rows, total, sd) {
  if (sd === null) return rows.map(() => null);
  const off = margin(sd);
  const values = rows.map((row) => row.most ?? row.value).sort((a, b) => b - a);
  const sure = rows.map((row) => row.least).sort((a, b) => b - a);
  return rows.map(({ value, least, most = value }) => {
    const last = count(values, (one) => one >= least - off);
    return [1 + count(sure, (one) => one > most + off), total > rows.length && values.at(-1) >= least - off ? null : last];
  });
}

// Where the error bar of a row ends: [low, high]. A part of a new item's change may have come before the window: its bar reaches
// down over it, but not below 0, and up as far as the noise of its count. What an item counted in a window that began in the epoch
// before, which did not show it, may be more than its count by what was needed to be shown there.
export function ends({ change, sd }, label, value) {
  if (sd === null) return [value, value];
  if (change && isAbsent(change, label)) return [Math.max(0, value - TIMES * sd), Math.max(0, most(change, label, value) + TIMES * change.sd_to)];
  if (change && isNewIn(change, label)) return [Math.max(0, least(change, label, value) - TIMES * sd), Math.max(0, value + TIMES * change.sd_to)];
  return [value - TIMES * sd, value + TIMES * sd];
}

// The least that an item's change may be but for noise: true counts never fall.
export function least(change, label, value) {
  if (!change || !isNewIn(change, label) || isAbsent(change, label)) return value;
  return change.threshold === null ? Math.min(0, value) : value - change.threshold;
}

// The most that it may be but for noise; of a choice of items, that is not known of one that was not chosen.
export const most = (change, label, value) => (change && isAbsent(change, label) ? value + (change.last.threshold ?? 0) : value);

// Where the error bar of a sum ends, of a row of `sums` and what is said of all; null where nothing is known of it.
export const sumEnds = (row, sum) => (row && row[0] !== null ? [row[0] - TIMES * sum.sd, row[0] + TIMES * sum.sd] : null);

const isNewIn = (change, label) => change.new.includes(label);
const isAbsent = (change, label) => Boolean(change.last?.absent.includes(label));

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

// How items have moved since an older snapshot of the same epoch. windows: the two are of one window without epochs, at two times.
export class Moves {
  constructor(snapshot, older, windows = false) {
    // What there was nothing before is the beginning, not news.
    this.known = Boolean(older?.items?.length) && snapshot.sd !== null && older.sd !== null;
    if (!this.known) return;
    this.windows = windows;
    this.snapshot = snapshot;
    this.older = older;
    this.now = new Map(snapshot.items);
    this.before = new Map(older.items);
    this.unseen = unseen(older);
    this.found = new Map();
  }

  // {isNew, by}: by counts the items that it has passed for certain, less those that have passed it; both ways noise is allowed for.
  of(label) {
    if (!this.known) return { isNew: false, by: 0 };
    let found = this.found.get(label);
    if (!found) this.found.set(label, (found = this.look(label, this.now.get(label))));
    return found;
  }

  look(label, value) {
    const was = this.before.get(label);
    if (was === undefined) return { isNew: this.isNew(value), by: 0 };
    const of = this.windows ? sharedTimes : boardTimes;
    const times = of(this.snapshot.items.length) / TIMES;
    const [now, then] = [times * margin(this.snapshot.sd), times * margin(this.older.sd)];
    let by = 0;
    for (const [other, count] of this.snapshot.items) {
      if (other === label) continue;
      // What was not shown had at most the count that something needs to be shown.
      const had = this.before.get(other) ?? (this.windows ? null : this.unseen);
      if (had === null) continue;
      if (had - was > then && value - count > now && this.before.has(other)) by += 1;
      if (was - had > then && count - value > now) by -= 1;
    }
    return { isNew: false, by };
  }

  isNew(value) {
    // One that is not among those that were sent may have been on the board.
    if (this.windows) return !(this.older.total_items > this.older.items.length);
    if (this.snapshot.change) return true;
    if (thresholdStays(this.snapshot.mechanism)) return true;
    const off = differenceSd(this.snapshot, this.older);
    return this.unseen !== null && off !== null && value - this.unseen > TIMES * off;
  }
}

// How items have moved, in their counts, since a window began. Where counts began at zero within it, places then and now are of
// different epochs: only what is newly shown is said.
export function movesIn(changes) {
  const { items, counts, change, mechanism } = changes;
  if (change.last) return { of: (label) => ({ isNew: isNewIn(change, label), by: 0 }) };
  if (change.tick === 0) return new Moves(changes, null);
  const then = items.map(([label, by], i) => [label, counts[i] - by]).filter(([label]) => !isNewIn(change, label));
  const now = items.map(([label], i) => [label, counts[i]]);
  return new Moves({ ...changes, items: now, sd: change.sd_to }, { items: then, sd: change.sd_from, threshold: change.threshold, mechanism });
}

// The most that an item had which a snapshot does not show; null where that cannot be said.
function unseen(snapshot) {
  if (snapshot.threshold !== null && thresholdIsCount(snapshot.mechanism) && !(snapshot.total_items > snapshot.items.length)) return snapshot.threshold;
  const values = snapshot.items.map(([, value]) => value);
  return values.length ? Math.min(...values) : null;
}

// The most that an item may have counted which a snapshot does not show, but for noise that is larger 1 time in 40; null where that
// cannot be said.
export function mostHidden({ mechanism, threshold, sd, items, total_items }) {
  const known = items && thresholdIsCount(mechanism) && (threshold ?? null) !== null && (sd ?? null) !== null;
  return known && !(total_items > items.length) ? threshold + TIMES * sd : null;
}

// The share of a count in the total of what is shown, with two standard deviations; null where the total itself may be noise.
// unknown: how much of the total may not belong to it.
export function share(value, items, sd, unknown = 0) {
  if (sd === null || !items.length) return null;
  const total = items.reduce((sum, [, one]) => sum + one, 0);
  if (total - unknown <= 2 * TIMES * sd * Math.sqrt(items.length)) return null;
  const part = value / total;
  // The noise of the total has that of the count in it.
  const off = (sd / total) * Math.sqrt((1 - part) ** 2 + part ** 2 * (items.length - 1));
  return { part, half: TIMES * off + Math.abs(value / (total - unknown) - part) };
}

// The share of a count in the published total of all items, {count, sd}, whose noise is its own; null as above.
export function shareOfAll(value, sd, all) {
  if (sd === null || all.count <= 2 * TIMES * all.sd) return null;
  const part = value / all.count;
  return { part, half: (TIMES * Math.hypot(sd, part * all.sd)) / all.count };
}

// What the items that are not listed count, all together, from the published count of all: {value, least, sd, from, to, share}; null
// where it cannot be said. A part of a new item's change may have come before the window, and then the others counted so much more in it;
// and so much less, if a listed item counted more than its change in the epoch before. But in a window they counted no more than they
// ever had at its end. until: the counts at the end of the window, of which `snapshot` is the change, where they are known.
export function others(snapshot, until = null) {
  const { items, sd, all_items: all, change } = snapshot;
  const absent = change?.last?.absent.length ?? 0;
  const fresh = (change?.new.length ?? 0) - absent;
  const ever = change && !change.last && until?.all_items && until.end === snapshot.end && !(until.total_items > until.items.length) ? others(until) : null;
  const unbounded = fresh && change.threshold === null;
  if (!all || sd === null || (unbounded && ever === null) || (absent && change.last.threshold === null)) return null;
  const missing = absent && absent * change.last.threshold;
  const left = all.count - items.reduce((sum, [, one]) => sum + one, 0);
  // True counts are never below 0.
  const value = Math.max(0, left);
  const listed = Math.hypot(sd * Math.sqrt(items.length - fresh), fresh && change.sd_to * Math.sqrt(fresh));
  const off = Math.hypot(all.sd, listed);
  const allowed = unbounded ? Infinity : fresh && fresh * change.threshold;
  const most = Math.max(value, left + allowed) + TIMES * off;
  const bounded = ever !== null && fresh > 0 && ever.to < most;
  const to = bounded ? Math.max(value, ever.to) : most;
  const unknown = bounded ? to - value : allowed;
  const part = Math.min(1, value / all.count);
  const half = (TIMES * Math.hypot(listed, (1 - part) * all.sd) + unknown + missing) / all.count;
  const known = all.count > 2 * TIMES * all.sd;
  const from = value - missing - TIMES * off;
  // Both ends against the least and the most that all items may count.
  const shareEnds = [Math.max(0, from) / (all.count + TIMES * all.sd), Math.min(1, Math.max(0, to) / (all.count - TIMES * all.sd))];
  return { value, least: value - unknown - missing, sd: off, from, to, share: known ? { part, half, ends: shareEnds } : null };
}
