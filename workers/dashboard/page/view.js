// What is looked at, as the address bar names it: it can be sent to somebody, and "back" goes back.

// A smaller number is a tick, a larger one a time in ms since 1970.
const TICKS_BELOW = 1e10;
// Fields with one value, and those with several.
const ONE = ["histogram", "key", "item", "at", "id", "window", "since", "range", "unit", "beside", "find", "order", "per", "all"];
const SEVERAL = ["with", "keys"];

export class View {
  constructor() {
    this.read();
  }

  read() {
    const query = new URLSearchParams(location.search);
    for (const name of ONE) this[name] = query.get(name);
    for (const name of SEVERAL) this[name] = query.getAll(name);
    if (this.key === "$all") this.key = "all"; // as the settings call it
    this.at = this.at === null || this.at === "" ? null : place(this.at);
    this.embed = query.get("embed");
    // As people write it: ?wall.
    this.look = query.has("wall") ? "wall" : query.get("view");
  }

  // {window} or {since} of the board, or null: its counts since they began.
  get span() {
    return this.window !== null ? { window: this.window } : this.since !== null ? { since: this.since } : null;
  }

  // again: this is the same place, so that "back" does not stop here.
  write(again) {
    const query = new URLSearchParams();
    for (const name of ONE) if (this[name] !== null) query.set(name, this[name]);
    for (const name of SEVERAL) for (const one of this[name]) query.append(name, one);
    if (this.embed !== null) query.set("embed", this.embed);
    if (this.look !== null) query.set("view", this.look);
    const address = `${location.pathname}?${query}`;
    if (address === location.pathname + location.search) return;
    history[again ? "replaceState" : "pushState"](null, "", address);
  }
}

// A tick, a time in ms, or a time as people write it; anything else is kept, so that it can be reported.
function place(text) {
  if (/^\d+$/.test(text)) return Number(text);
  const time = Date.parse(text);
  return Number.isNaN(time) ? text : time;
}

export const isTick = (at) => typeof at === "number" && at < TICKS_BELOW;
