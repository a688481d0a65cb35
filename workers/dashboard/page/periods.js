// What was final: the last tick of every epoch that is kept, and a way to any tick of the past.

import { byId, button, element } from "./dom.js";
import { NoToken, asked } from "./net.js";
import { beginning, capital, clockOf, epochName, fromTo, isMidnight, moment } from "./when.js";
import { isRunning } from "./words.js";

const PAGE = 100;
const SOON_MS = 2000;
const DAY_MS = 86400e3;

export class Periods {
  // hooks: onPick(end, id), onChange(), onNoToken(), now(), horizonOf(histogram), hasHistory()
  constructor(hooks) {
    this.hooks = hooks;
    this.box = byId("periods");
    this.list = byId("epochs-list");
    this.older = byId("epochs-older");
    this.stream = null;
    this.epochs = [];
    this.more = false;
    this.newest = null;
    this.first = null;
    this.drawn = "";
    this.timer = 0;
    this.older.addEventListener("click", () => this.load(true));
    byId("moment-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const at = new Date(byId("moment").value).getTime();
      if (!Number.isNaN(at)) this.pick(at, null);
    });
  }

  follow(histogram, key) {
    this.stream = { histogram, key };
    this.epochs = [];
    this.more = false;
    byId("epochs-gone").hidden = true;
    this.newest = this.first = null;
    this.load();
  }

  pick(end, id) {
    byId("epochs").open = false;
    this.hooks.onPick(end, id);
  }

  // When a snapshot's counts began at zero: with its epoch, or, where the worker or a generation was begun within one, with its first
  // tick; by the grid of ticks while nothing else is known.
  began(snapshot) {
    const known = isRunning(snapshot.mechanism) && this.epochs.find((one) => one.id === snapshot.id)?.began;
    return known || beginning(snapshot);
  }

  // The same of any series; null where it is not known.
  beganOf(id) {
    return this.epochs.find((one) => one.id === id)?.began ?? null;
  }

  // Whether that has been asked for, where it can be.
  knows(snapshot) {
    return !this.hooks.hasHistory() || this.epochs.some((one) => one.id === snapshot.id);
  }

  // A snapshot of another series has come: what was the newest one until now is final.
  take(snapshot) {
    const changed = this.newest?.id !== snapshot.id;
    this.newest = snapshot;
    this.grow();
    if (changed) this.load();
  }

  // The newest epoch reaches as far as its newest tick, also where that is not in the history yet.
  grow() {
    const last = this.epochs.at(-1);
    const { id, tick, start, end } = this.newest ?? {};
    if (last && last.id === id && end > last.end) Object.assign(last, { tick, start, end });
  }

  async load(older = false) {
    const { stream } = this;
    clearTimeout(this.timer);
    if (!stream || !this.hooks.hasHistory()) return;
    const to = older && this.epochs.length ? this.epochs[0].end - 1 : null;
    let found;
    try {
      found = await asked("api/epochs", { ...stream, top: 1, limit: PAGE, to });
    } catch (error) {
      if (error instanceof NoToken) this.hooks.onNoToken();
      return; // asked again with the next epoch, or when the connection is back
    }
    if (stream !== this.stream) return;
    // What is not in the history yet comes.
    if (found.status === 503) this.timer = setTimeout(() => this.load(older), SOON_MS);
    if (found.status !== 200) return;
    this.first = found.body.kept?.first ?? null;
    // What was thinned on purpose is not missing, and what is still being read comes.
    if (to === null) byId("epochs-gone").hidden = found.body.complete || found.body.reading !== null;
    const answered = new Set(found.body.epochs.map((one) => one.id));
    const first = found.body.epochs[0]?.end ?? 0;
    const kept = this.epochs.filter((one) => !answered.has(one.id) && (to !== null || one.end < first));
    this.epochs = to === null ? [...kept, ...found.body.epochs] : [...found.body.epochs, ...kept];
    if (to !== null || !kept.length) this.more = found.body.more;
    this.grow();
    // An epoch that has just begun is in the history a little later than on the stream.
    if (this.newest !== null && this.epochs.at(-1)?.id !== this.newest.id) this.timer = setTimeout(() => this.load(), SOON_MS);
    this.hooks.onChange();
  }

  // shown: the snapshot that is looked at.
  draw(shown) {
    const now = this.hooks.now();
    // Without epochs nothing is ever final.
    const running = this.epochs.filter((one) => isRunning(one.mechanism) && !one.window);
    byId("epochs-totals").hidden = Boolean((shown ?? this.newest)?.window);
    this.box.hidden = !this.hooks.hasHistory() || (shown === null && !this.epochs.length);
    const text = JSON.stringify([running.map((one) => [one.id, one.end, one.final, one.began]), shown?.id, shown?.end, this.more, Math.floor(now / 60e3)]);
    if (text === this.drawn) return;
    this.drawn = text;
    this.list.replaceChildren(...[...running].reverse().map((one) => this.entry(one, shown, now)));
    byId("epochs-none").hidden = running.length > 0;
    this.older.hidden = !this.more;
  }

  entry(epoch, shown, now) {
    const made = button("", "epoch", () => this.pick(epoch.end, epoch.id));
    // Of what is final the name says until when.
    const text = epoch.final ? "final" : `so far, until ${moment(epoch.end, now)}`;
    made.append(element("span", capital(this.name(epoch, now))), element("small", text));
    made.dataset.id = epoch.id;
    made.dataset.end = epoch.end;
    made.setAttribute("aria-pressed", `${shown?.id === epoch.id && shown.end === epoch.end}`);
    const item = document.createElement("li");
    item.append(made);
    return item;
  }

  // When an epoch ends, or was to end; null where it has no end.
  wholeEnd(epoch) {
    const horizon = this.hooks.horizonOf(epoch.histogram);
    return horizon ? beginning(epoch) + horizon * (epoch.end - epoch.start) : null;
  }

  name(epoch, now) {
    const begin = this.began(epoch);
    const grid = beginning(epoch);
    const whole = this.wholeEnd(epoch);
    const late = begin !== grid;
    // That of a day is called by it, also where it began later.
    const called = whole !== null && isMidnight(grid) && isMidnight(whole) && !(late && whole - grid > DAY_MS);
    if (!epoch.final && !called) return `since ${moment(begin, now)}`;
    if (whole === null || (epoch.final && epoch.end < whole)) return fromTo(begin, epoch.end, now);
    return called ? `${epochName(grid, whole, now)}${late ? `, from ${clockOf(begin)}` : ""}` : fromTo(begin, whole, now);
  }
}
