// What is looked at, and what is known of it: the address bar, the catalogue, the last snapshots of one stream, one item's past.

import { answersOf } from "./answers.js";
import { Events, ask } from "./net.js";

// The largest items that are asked for: more than anybody reads, few enough to be quick.
const TOP = 1000;
const HISTORY = 120;
const RANK_TICKS = 10;

export class View {
  constructor() {
    this.read();
  }

  read() {
    const query = new URLSearchParams(location.search);
    this.histogram = query.get("histogram");
    this.key = query.get("key");
    this.item = query.get("item");
    this.at = Number(query.get("at")) || null;
  }

  // again: this is the same place, so that "back" does not stop here.
  write(again) {
    const query = new URLSearchParams();
    for (const name of ["histogram", "key", "item", "at"]) if (this[name] !== null) query.set(name, this[name]);
    const address = `${location.pathname}?${query}`;
    if (address === location.pathname + location.search) return;
    history[again ? "replaceState" : "pushState"](null, "", address);
  }
}

// One histogram and stream key, followed. onChange() is called when anything of it is new.
export class Followed {
  constructor(histogram, key, hooks) {
    this.histogram = histogram;
    this.key = key;
    this.hooks = hooks;
    this.snapshots = [];
    this.item = null;
    this.series = [];
    this.asked = 0;
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

  // Ranks ten ticks before a snapshot, or as far back as is known of its epoch.
  ranksBefore(snapshot) {
    const older = this.snapshots.filter((one) => one.id === snapshot.id && one.end < snapshot.end).slice(-RANK_TICKS)[0];
    if (!older?.items) return null;
    older.ranks ??= new Map(older.items.map(([label], index) => [label, index + 1]));
    return older.ranks;
  }

  async load() {
    const found = await this.quietly(ask("api/snapshots", { histogram: this.histogram, key: this.key, limit: RANK_TICKS + 1, top: TOP }));
    if (!found || this.closed) return;
    for (const snapshot of found.snapshots) this.keep(snapshot);
    this.known = true;
    this.hooks.onChange();
  }

  receive(name, data) {
    if (data.now) this.hooks.onClock(data.now);
    if (name === "state") this.stand(data);
    if (name === "streams") this.hooks.onStreams();
    if (name !== "snapshot") return;
    this.keep(data);
    if (this.item !== null) this.append(data);
    this.hooks.onChange();
  }

  // What came while the server was reading is in its history, of which it sent the end only.
  stand(state) {
    if (state.kafka === "live" && this.kafka !== null && this.kafka !== "live") this.again();
    this.kafka = state.kafka;
    this.hooks.onState(state);
  }

  again() {
    this.load();
    if (this.item !== null) this.follow(this.item);
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

  // The snapshot of the tick that ended at `end`, or null if it is no longer kept.
  async pinned(end) {
    await this.loaded;
    const known = this.snapshots.find((one) => one.end === end);
    if (known) return known;
    const found = await this.quietly(ask("api/snapshots", { histogram: this.histogram, key: this.key, after: end - 1, limit: 1, top: TOP }));
    return found?.snapshots[0] ?? null;
  }

  // The tick before or after the one that ended at `end`.
  async beside(end, forward) {
    const query = { histogram: this.histogram, key: this.key, top: 1 };
    const found = await this.quietly(ask("api/snapshots", forward ? { ...query, after: end, limit: 1 } : { ...query, limit: HISTORY }));
    const ends = (found?.snapshots ?? []).map((one) => one.end).filter((one) => (forward ? one > end : one < end));
    return forward ? (ends[0] ?? null) : (ends.at(-1) ?? null);
  }

  // Loads an item's past; what comes from now on is added to it.
  async follow(item) {
    if (item !== this.item) this.series = [];
    this.item = item;
    if (item === null) return;
    const asked = ++this.asked;
    const query = { histogram: this.histogram, key: this.key, limit: HISTORY };
    const found = await this.quietly(ask("api/snapshots", this.newest?.items ? { ...query, item } : query));
    if (!found || asked !== this.asked || this.closed) return;
    const points = found.snapshots.map((snapshot) => point(snapshot, item)).filter((one) => one !== null);
    const last = points.at(-1)?.end ?? 0;
    this.series = [...points, ...this.series.filter((one) => one.end > last)];
    this.hooks.onChange();
  }

  append(snapshot) {
    const one = point(snapshot, this.item);
    const cut = snapshot.items && snapshot.total_items > snapshot.items.length;
    if (one === null) {
      if (cut) this.follow(this.item); // it may be among those that were not sent
      return;
    }
    const last = this.series.at(-1);
    if (last && one.end <= last.end && one.id !== last.id) this.series = this.series.filter((p) => p.end < one.end);
    if (!this.series.length || one.end > this.series.at(-1).end) this.series = [...this.series, one].slice(-HISTORY);
  }

  async quietly(answer) {
    try {
      return await answer;
    } catch (error) {
      if (error.name === "NoToken" || error.constructor.name === "NoToken") this.hooks.onNoToken();
      return null; // the stream notices a server that is gone, and opens again
    }
  }
}

// What is followed of a histogram of numbers: a bucket by its label, none of which begins like this, or a quantile.
export const quantileItem = (q) => `q:${q}`;
export const isQuantile = (item) => item.startsWith("q:");

function point(snapshot, item) {
  const { end, tick, id } = snapshot;
  if (snapshot.edges && isQuantile(item)) {
    const found = snapshot.quantiles?.find((one) => quantileItem(one.q) === item);
    if (!found || found.value === null) return null;
    const { value, low, high } = found;
    return { end, tick, id, value, low, high, half: low === null || high === null ? null : (high - low) / 2, threshold: null };
  }
  if (snapshot.items) {
    const found = snapshot.items.find(([label]) => label === item);
    if (!found) return null;
    return { end, tick, id, value: found[1], half: snapshot.sd === null ? null : 2 * snapshot.sd, threshold: snapshot.threshold };
  }
  const answer = answersOf(snapshot).find((one) => one.query === item);
  if (typeof answer?.value !== "number" || snapshot.since === 0) return null;
  return { end, tick, id, value: answer.value, half: typeof snapshot.error === "number" ? snapshot.error : null, threshold: null };
}
