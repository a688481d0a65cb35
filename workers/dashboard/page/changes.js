// What was counted in a window: the server subtracts two ticks, and says with which error (docs/api.md, "Changes").

import { NoToken, asked } from "./net.js";

const TOP = 1000;
// A live window is asked for again this often at most.
const EVERY_MS = 2000;

export class Changes {
  // hooks: onChange(), onNoToken()
  constructor(hooks) {
    this.hooks = hooks;
    this.clear();
  }

  clear() {
    this.kept = new Map();
  }

  // The changes over a window, {window} or {since}, that ends with a snapshot: {snapshot}, or {snapshot: null, error}; while they are
  // on their way those of the tick before, or null. item: of this one alone.
  of(snapshot, window, item = null) {
    const { histogram, key, id, end } = snapshot;
    const name = JSON.stringify([histogram, key, id, window, item]);
    const one = this.kept.get(name) ?? { of: null, at: -Infinity, found: null, loading: false, timer: 0 };
    this.kept.set(name, one);
    const wait = one.at + EVERY_MS - performance.now();
    if (one.of !== end && !one.loading) {
      if (wait <= 0 || one.of > end) this.load(one, end, { histogram, key, id, at: end, top: TOP, item, ...window });
      else one.timer ||= setTimeout(() => {
        one.timer = 0;
        this.hooks.onChange();
      }, wait);
    }
    return one.found;
  }

  async load(one, end, query) {
    Object.assign(one, { of: end, at: performance.now(), loading: true });
    try {
      const { status, body } = await asked("api/snapshots", query);
      // 503: the server is busy, or has not read that far; it is asked again.
      if (status === 503) one.of = null;
      if (status !== 503 || one.found === null) one.found = { snapshot: body.snapshots?.[0] ?? null, error: body.error };
    } catch (error) {
      one.of = null;
      if (error instanceof NoToken) this.hooks.onNoToken();
    }
    one.loading = false;
    this.hooks.onChange();
  }
}
