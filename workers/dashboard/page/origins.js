// When a series really began: with its epoch, or, where the worker or a new generation was begun within one, with its first tick.

import { NoToken, asked } from "./net.js";
import { beginning } from "./when.js";
import { isRunning } from "./words.js";

const SOON_MS = 5000;

export class Origins {
  // hooks: onChange(), onNoToken(), hasHistory()
  constructor(hooks) {
    this.hooks = hooks;
    this.known = new Map();
  }

  // In ms; by the grid of ticks while nothing else is known.
  of(snapshot) {
    const begin = beginning(snapshot);
    if (!isRunning(snapshot.mechanism) || snapshot.tick === 1) return begin;
    const name = JSON.stringify([snapshot.histogram, snapshot.key, snapshot.id]);
    if (!this.known.has(name) && this.hooks.hasHistory()) this.look(name, snapshot, begin);
    return this.known.get(name) ?? begin;
  }

  async look(name, snapshot, begin) {
    this.known.set(name, null);
    const { histogram, key, id } = snapshot;
    try {
      // Another series may have been shown in the same epoch before; then this one began after its last tick.
      const epochs = await asked("api/epochs", { histogram, key, top: 1, from: Math.max(0, begin), to: snapshot.end });
      const before = epochs.status === 200 ? epochs.body.epochs.findLast((one) => one.id !== id)?.end : undefined;
      const from = before ?? begin;
      const found = await asked("api/history", { histogram, key, from: Math.max(0, from), to: snapshot.end, limit: 1 });
      const first = found.status === 200 ? found.body.entries[0] : undefined;
      // Where ticks were thinned out, or not read, the first that is kept need not be the first.
      const sure = first?.id === id && found.body.complete && from >= found.body.kept.ticks - (first.end - first.start);
      if (before !== undefined || sure || first?.tick === 1) this.known.set(name, sure ? first.start : from);
      else this.again(name, first === undefined);
    } catch (error) {
      this.again(name, true);
      if (error instanceof NoToken) this.hooks.onNoToken();
      return;
    }
    this.hooks.onChange();
  }

  // What is not in the history yet is asked for again later.
  again(name, soon) {
    if (!soon) return;
    setTimeout(() => {
      this.known.delete(name);
      this.hooks.onChange();
    }, SOON_MS);
  }
}
