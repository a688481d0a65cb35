// Exact counts beside the private ones. Only the demo's server has them, and says where; no other dashboard ever asks.

import { ask } from "./net.js";

const WAIT_MS = 700;
const KEPT = 130;

export class Exact {
  constructor(path, onChange) {
    this.path = path;
    this.onChange = onChange;
    this.ticks = new Map();
    this.stream = null;
    setInterval(() => this.load(), WAIT_MS);
  }

  watch(histogram, key) {
    this.stream = { histogram, key };
    this.ticks = new Map();
    this.load();
  }

  // {counts: Map of label to count, hidden: labels that are not shown} of the tick that ended then; null while unknown.
  at(end) {
    return this.ticks.get(end) ?? null;
  }

  async load() {
    if (!this.stream || document.hidden) return;
    const stream = this.stream;
    const after = Math.max(0, ...this.ticks.keys());
    try {
      const found = await ask(this.path, { ...stream, after });
      if (!found?.ticks.length || stream !== this.stream) return;
      for (const { end, items, hidden } of found.ticks) this.ticks.set(end, { counts: new Map(items), hidden });
      for (const end of [...this.ticks.keys()].slice(0, -KEPT)) this.ticks.delete(end);
      this.onChange();
    } catch {
      // the stream notices a server that is gone
    }
  }
}
