// Windows without epochs: each is a series of snapshots of its own, and all windows of a histogram are one entry of the page.

import { NoToken, asked } from "./net.js";
import { Moves } from "./noise.js";
import { duration } from "./words.js";

const SOON_MS = 2000;
// The tick at which the window before began moves on with the shown one; until the next is here, the last one stays.
const NEAR = 1 / 8;

// The windows of one histogram, shortest first; a histogram with epochs is alone.
export const windowsOf = (histograms, name) => histograms.filter((one) => one.name === name).sort((a, b) => a.window_ms - b.window_ms);

// What is opened: the second window where there are several. The shortest shows what happens this moment, and little of it stands out from
// the noise; the longer ones hardly move. The second moves while it is looked at, and has counts that can be told apart.
const opened = (windows) => windows[1] ?? windows[0];

// Every histogram once, by its name in the settings.
export const namesOf = (histograms) => [...new Set(histograms.map((one) => one.name))];

// The series that an address means: {histogram, window}. A histogram without a window opens with one; undefined: there is none such.
export function seriesOf(histograms, { histogram, window }) {
  const name = histogram ?? (histograms.find((one) => one.keys.length) ?? histograms[0])?.name;
  const exact = histograms.find((one) => one.histogram === name);
  if (exact && exact.window_ms === null) return exact;
  const windows = windowsOf(histograms, exact?.name ?? name);
  return windows.find((one) => duration(one.window_ms) === window) ?? exact ?? opened(windows);
}

// The series to show of another histogram: the same window where there is one.
export function seriesLike(histograms, name, windowMs) {
  const windows = windowsOf(histograms, name);
  return windows.find((one) => one.window_ms === windowMs) ?? opened(windows);
}

// The board one window before the one that is shown, which ended where this one begins: arrows and "new" are against it.
export class Earlier {
  // hooks: onChange()
  constructor(hooks) {
    this.hooks = hooks;
    this.clear();
  }

  clear() {
    Object.assign(this, { id: null, at: null, found: null, loading: false, moved: null });
    clearTimeout(this.timer);
  }

  // followed: the stream; began: when its counting began. Null while it is not known, is not kept, or was not a whole window.
  of(followed, snapshot, began) {
    const { id, window } = snapshot;
    if (window.from - window.ms < began) return null;
    if (this.id !== id) this.clear();
    this.id = id;
    if (this.at !== window.from && !this.loading) this.load(followed, id, window.from);
    const near = this.found && Math.abs(this.found.end - window.from) <= NEAR * window.ms;
    return near && this.found.window?.from >= began ? this.found : null;
  }

  async load(followed, id, at) {
    Object.assign(this, { at, loading: true });
    const found = await followed.pinned(at, id);
    if (this.id !== id || this.at !== at) return;
    this.loading = false;
    if (found === null) {
      // The server is away, or has not read that far.
      this.timer = setTimeout(() => {
        if (this.at === at) this.at = null;
        this.hooks.onChange();
      }, SOON_MS);
      return;
    }
    this.found = found.snapshot;
    this.hooks.onChange();
  }

  // How items have moved since then.
  moves(snapshot, older) {
    if (this.moved?.snapshot !== snapshot || this.moved.older !== older) this.moved = { snapshot, older, moves: new Moves(snapshot, older, true) };
    return this.moved.moves;
  }
}

// When series of other histograms began to count, asked for once.
export class Began {
  // hooks: onChange(), onNoToken(), hasHistory()
  constructor(hooks) {
    this.hooks = hooks;
    this.known = new Map();
  }

  // Null while it is not known, or where its first tick is not kept.
  of({ histogram, key, id }) {
    const name = JSON.stringify([histogram, key, id]);
    if (!this.known.has(name) && this.hooks.hasHistory()) {
      this.known.set(name, null);
      this.load(name, { histogram, key, top: 1, limit: 2 }, id);
    }
    return this.known.get(name) ?? null;
  }

  async load(name, query, id) {
    try {
      const { status, body } = await asked("api/epochs", query);
      const found = status === 200 ? body.epochs.find((one) => one.id === id) : undefined;
      this.known.set(name, found?.began ?? null);
      // The history has a new series a moment later.
      if (found === undefined) setTimeout(() => this.known.delete(name), SOON_MS);
      this.hooks.onChange();
    } catch (error) {
      this.known.delete(name);
      if (error instanceof NoToken) this.hooks.onNoToken();
    }
  }
}
