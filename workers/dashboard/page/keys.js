// All stream keys at once: a small board for each, side by side, with what is newest of it.

import { byId, element, named, set } from "./dom.js";
import { Events } from "./net.js";
import { ends } from "./noise.js";
import { ordered } from "./order.js";
import { NOTHING, about2sd, atMost, count, nothingShown, oneLine } from "./words.js";

// The server sends the largest 10 of each key.
const TOP = 10;
// So many rows of each are shown; all that are sent where the boards are few.
const ROWS = 5;
const FEW = 4;

export class AllKeys {
  // hooks: onPick(key, item): one was chosen; onNoToken()
  constructor(hooks) {
    this.hooks = hooks;
    this.box = byId("keys-grid");
    this.histogram = null;
    this.boards = new Map();
  }

  // histogram: whose keys are shown, or null: none; keys: how many it has.
  follow(histogram, keys = 0) {
    this.rows = keys > FEW ? ROWS : TOP;
    byId("all-keys").hidden = histogram === null;
    if (histogram === this.histogram) return;
    this.events?.close();
    this.events = null;
    this.histogram = histogram;
    this.boards.clear();
    this.box.replaceChildren();
    if (histogram === null) return;
    const again = () => {};
    this.events = new Events("api/stream", { histogram, top: TOP }, {
      onEvent: (name, data) => name === "snapshot" && this.take(data),
      onOpen: again,
      onLost: again,
      onNoToken: this.hooks.onNoToken,
    });
  }

  take(snapshot) {
    if (!this.boards.has(snapshot.key)) this.add(snapshot.key);
    this.fill(this.boards.get(snapshot.key), snapshot);
  }

  // In the order of their names, wherever a key comes late.
  add(key) {
    const made = element("section", undefined, "small-board");
    const title = document.createElement("button");
    title.type = "button";
    title.className = "plain";
    title.append(named(oneLine(key) || NOTHING.empty));
    title.addEventListener("click", () => this.hooks.onPick(key, null));
    const heading = document.createElement("h3");
    heading.append(title);
    made.append(heading, document.createElement("ol"), element("p", "", "note"));
    const after = [...this.boards.keys()].filter((one) => one > key).sort()[0];
    this.box.insertBefore(made, after === undefined ? null : this.boards.get(after));
    this.boards.set(key, made);
  }

  fill(made, snapshot) {
    const [, list, note] = made.children;
    const items = snapshot.items ?? [];
    const rows = ordered(items.map(([label, value]) => row(snapshot, label, value)), null, {}).slice(0, this.rows);
    const most = Math.max(1, ...rows.map((one) => one.to));
    list.replaceChildren(...rows.map((one) => this.entry(snapshot, one, most)));
    const rest = (snapshot.total_items ?? items.length) - rows.length;
    set(note, items.length ? (rest > 0 ? `and ${count(rest)} more` : "") : snapshot.items ? nothingShown(snapshot, null) : "Its answers are shown when it is chosen.");
  }

  entry({ key, sd }, { label, value, from, to }, most) {
    const made = document.createElement("li");
    const pick = document.createElement("button");
    pick.type = "button";
    pick.className = "pick";
    pick.append(named(oneLine(label) || NOTHING.empty));
    pick.addEventListener("click", () => this.hooks.onPick(key, label));
    const number = sd === null ? count(value) : from <= 0 ? atMost(to) : `${count(value)} ± ${about2sd(sd)}`;
    const bar = element("i", "", "fill");
    bar.style.width = `${Math.max(0, Math.min(100, (100 * value) / most))}%`;
    made.append(pick, element("span", number, from <= 0 && sd !== null ? "unsure" : ""), bar);
    return made;
  }
}

function row(snapshot, label, value) {
  const [from, to] = ends(snapshot, label, value);
  return { label, value, from, to, least: value };
}
