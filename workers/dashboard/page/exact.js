// Exact counts beside the private ones. Only the demo's server has them, and says where; no other dashboard ever asks.

import { ask } from "./net.js";

const IDLE_MS = 700;
const WANTED_MS = 60;
const LATE_MS = 1500;
const KEPT = 130;

export class Exact {
  constructor(path, onChange) {
    this.path = path;
    this.onChange = onChange;
    this.ticks = new Map();
    this.stream = null;
    this.wanted = null;
    this.run();
  }

  watch(histogram, key) {
    this.stream = { histogram, key };
    this.ticks = new Map();
    this.wanted = null;
  }

  // {counts: Map of label to count, hidden: labels that are not shown} of the tick that ended then; null while unknown.
  at(end) {
    return this.ticks.get(end) ?? null;
  }

  // The exact counts of a snapshot, or of a window those that came in it; none until they are known.
  counts({ end, change }) {
    const now = this.at(end)?.counts;
    const then = !change || change.tick === 0 ? new Map() : this.at(change.from)?.counts;
    const last = change?.last ? this.at(change.last.end)?.counts : new Map();
    return new Map(now && then && last ? [...now].map(([label, one]) => [label, one + (last.get(label) ?? 0) - (then.get(label) ?? 0)]) : []);
  }

  // Whether a tick can be drawn: its exact counts are here, or have been asked for long enough.
  ready(end) {
    if (this.ticks.has(end)) return true;
    if (this.wanted?.end !== end) {
      this.wanted = { end, since: performance.now() };
      this.again(0);
    }
    return performance.now() - this.wanted.since > LATE_MS;
  }

  again(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), ms);
  }

  async run() {
    const waits = () => this.wanted !== null && !this.ticks.has(this.wanted.end) && performance.now() - this.wanted.since <= LATE_MS;
    const before = waits();
    if (await this.load()) this.onChange();
    else if (before && !waits()) this.onChange();
    this.again(waits() ? WANTED_MS : IDLE_MS);
  }

  // Returns whether anything new has come.
  async load() {
    if (!this.stream || document.hidden) return false;
    const stream = this.stream;
    const after = Math.max(0, ...this.ticks.keys());
    try {
      const found = await ask(this.path, { ...stream, after });
      if (!found?.ticks.length || stream !== this.stream) return false;
      for (const { end, items, hidden } of found.ticks) this.ticks.set(end, { counts: new Map(items), hidden });
      for (const end of [...this.ticks.keys()].slice(0, -KEPT)) this.ticks.delete(end);
      return true;
    } catch {
      return false; // the stream notices a server that is gone
    }
  }
}
