// The last snapshots of one stream, followed, and single ones of its past.

import { answersOf } from "./answers.js";
import { Events, NoToken, ask, asked } from "./net.js";
import { Moves, mostHidden } from "./noise.js";
import { isTick } from "./view.js";
import { bucketsOf } from "./words.js";

// How many of the largest items to request: more than anybody reads, few enough to be quick.
const TOP = 1000;
// As many as the server holds in memory.
const HELD = 120;
const RANK_TICKS = 10;

// One histogram and stream key, followed. onChange() is called when anything of it is new.
export class Followed {
  constructor(histogram, key, hooks) {
    this.histogram = histogram;
    this.key = key;
    this.hooks = hooks;
    this.snapshots = [];
    this.kafka = null;
    this.closed = false;
    this.known = false;
    this.loaded = this.load();
    this.events = new Events("api/stream", { histogram, key, top: TOP }, {
      onEvent: (name, data) => this.receive(name, data),
      onOpen: (again) => {
        hooks.onOpen();
        if (again) this.again();
      },
      onLost: hooks.onLost,
      onNoToken: hooks.onNoToken,
    });
  }

  close() {
    this.closed = true;
    this.events.close();
  }

  get newest() {
    return this.snapshots.at(-1) ?? null;
  }

  // The newest snapshot of which something is true, or null.
  newestWith(what) {
    return this.snapshots.findLast(what) ?? null;
  }

  // How items have moved in the ten ticks before a snapshot, or as far back as is known of its epoch.
  moves(snapshot) {
    const older = this.snapshots.filter((one) => one.id === snapshot.id && one.end < snapshot.end).slice(-RANK_TICKS)[0];
    if (this.moved?.snapshot !== snapshot || this.moved.older !== older) this.moved = { snapshot, older, moves: new Moves(snapshot, older) };
    return this.moved.moves;
  }

  async load() {
    if (!this.hooks.mayExist(this.histogram, this.key)) {
      // Not published so far: when it is, the stream sends it.
      this.known = true;
      this.hooks.onChange();
      return;
    }
    const found = await this.quietly(asked("api/snapshots", { histogram: this.histogram, key: this.key, limit: RANK_TICKS + 1, top: TOP }));
    if (!found || this.closed) return;
    // 503: not read yet. When it is, the stream says so, and it is asked for again.
    if (![200, 404].includes(found.status)) return;
    for (const snapshot of found.body.snapshots ?? []) this.keep(snapshot);
    this.known = true;
    this.hooks.onChange();
  }

  receive(name, data) {
    if (data.now) this.hooks.onClock(data.now);
    if (name === "state") this.stand(data);
    if (name === "streams") this.hooks.onStreams();
    if (name === "history") this.hooks.onHistory(data);
    if (name !== "snapshot") return;
    this.keep(data);
    this.hooks.onSnapshot(data);
    this.hooks.onChange();
  }

  // Snapshots that came while the server was reading are in its history; it sent only the end of it.
  stand(state) {
    if (state.kafka === "live" && this.kafka !== null && this.kafka !== "live") this.again();
    this.kafka = state.kafka;
    this.hooks.onState(state);
  }

  again() {
    this.load();
    this.hooks.onGap();
  }

  keep(snapshot) {
    const same = this.snapshots.findIndex((one) => one.end === snapshot.end);
    if (same >= 0) this.snapshots.splice(same, 1);
    // Another series that goes back in time: the topic was started again.
    if (this.newest && snapshot.end < this.newest.end && snapshot.id !== this.newest.id) {
      this.snapshots = this.snapshots.filter((one) => one.id === snapshot.id || one.end < snapshot.end);
    }
    this.snapshots.push(snapshot);
    this.snapshots.sort((a, b) => a.end - b.end);
    this.snapshots = this.snapshots.slice(-RANK_TICKS - 1);
  }

  // The snapshot of a tick: {snapshot}, or {snapshot: null, nearest}, the ends of ticks before and after that are kept; null while that
  // cannot be known.
  async pinned(at, id) {
    await this.loaded;
    const known = this.snapshots.find((one) => (isTick(at) ? one.tick === at : one.end === at) && (id === null || one.id === id));
    if (known && !isTick(at)) return { snapshot: known };
    if (!this.hooks.hasHistory()) return this.held(at, known);
    const query = { histogram: this.histogram, key: this.key, top: TOP, id, ...(isTick(at) ? { tick: at, epoch: this.newest?.epoch } : { at }) };
    const found = await this.quietly(asked("api/snapshots", query));
    if (found?.status === 200) return { snapshot: found.body.snapshots[0] ?? null, nearest: null };
    if (found?.status === 404) return { snapshot: null, nearest: found.body.nearest ?? null };
    if (found?.status === 503) return null;
    return this.held(at, known);
  }

  // The same where there is no history: among the ticks that the server holds in memory.
  async held(at, known) {
    if (known) return { snapshot: known };
    const query = { histogram: this.histogram, key: this.key };
    const found = await this.quietly(asked("api/snapshots", { ...query, top: 1, limit: HELD }));
    if (found?.status === 404) return { snapshot: null, nearest: null };
    if (found?.status !== 200) return null;
    const { snapshots } = found.body;
    const match = snapshots.find((one) => (isTick(at) ? one.tick === at : one.start < at && at <= one.end));
    if (!match) return { snapshot: null, nearest: { before: null, after: snapshots[0] ?? null } };
    const whole = await this.quietly(ask("api/snapshots", { ...query, top: TOP, after: match.end - 1, limit: 1 }));
    return { snapshot: whole?.snapshots[0] ?? null, nearest: null };
  }

  // The end of the tick before or after a snapshot, or of the nearest one that is kept; null where there is none.
  async beside(snapshot, forward) {
    const width = snapshot.end - snapshot.start;
    const found = await this.pinned(forward ? snapshot.end + width : snapshot.start, null);
    return found?.snapshot ?? (forward ? found?.nearest?.after : found?.nearest?.before) ?? null;
  }

  async quietly(answer) {
    try {
      return await answer;
    } catch (error) {
      if (error instanceof NoToken) this.hooks.onNoToken();
      return null; // the stream notices a server that is gone, and opens again
    }
  }
}

// An item of a histogram of numbers is a bucket, by its label, or a quantile; no label begins like this.
export const quantileItem = (q) => `q:${q}`;
export const isQuantile = (item) => item.startsWith("q:");

// One item at one tick, as it is drawn: a value, and half the width of its band. Its value is null where it is not shown; most: what it
// may have counted there.
export function point(snapshot, item) {
  const { id, tick, start, end, windows } = snapshot;
  const at = { id, tick, start, end, windows, sd: snapshot.sd ?? null, value: null, half: null, threshold: null };
  if (snapshot.edges && isQuantile(item)) {
    const found = snapshot.quantiles?.find((one) => quantileItem(one.q) === item);
    if (!found || found.value === null) return at;
    const [low, high] = bucketsOf(found, snapshot.edges);
    return { ...at, value: found.value, low, high, half: low === null || high === null ? null : (high - low) / 2 };
  }
  if (snapshot.items) {
    const index = snapshot.items.findIndex(([label]) => label === item);
    if (index < 0) return { ...at, cut: snapshot.total_items > snapshot.items.length, most: mostHidden(snapshot) };
    const { threshold, sums, sum } = snapshot;
    return { ...at, value: snapshot.items[index][1], half: at.sd === null ? null : 2 * at.sd, threshold, sums: sums?.[index], sum };
  }
  const answer = answersOf(snapshot).find((one) => one.query === item);
  if (typeof answer?.value !== "number" || snapshot.since === 0) return at;
  return { ...at, value: answer.value, half: typeof snapshot.error === "number" ? snapshot.error : null };
}

// The mean or the sum at a point, in place of the count; nothing where it is not known.
export function summed(one, what) {
  const [total, mean, low, high] = one.sums ?? [null, null];
  const [value, ends] = what === "mean" ? [mean, [low, high]] : [total, total === null ? [] : [total - 2 * one.sum.sd, total + 2 * one.sum.sd]];
  return value === null ? { ...one, value } : { ...one, value, low: ends[0], high: ends[1], half: (ends[1] - ends[0]) / 2, threshold: null };
}
