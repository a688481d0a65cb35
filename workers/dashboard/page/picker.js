// The pickers of histogram and stream key; where there are many keys, a field that finds one by a part of its name.

import { byId, element } from "./dom.js";
import { NOTHING, oneLine } from "./words.js";

// Up to this many keys need no search box.
const FEW = 12;
const LISTED = 50;

export function fillSelect(select, values, chosen) {
  const same = select.options.length === values.length && values.every((value, i) => select.options[i].value === value);
  if (!same) select.replaceChildren(...values.map(option));
  // A value that is not among them leaves nothing chosen: another one would be taken for it.
  select.value = chosen;
  select.title = chosen ?? "";
  select.disabled = values.length === 0;
}

function option(value) {
  const made = element("option", oneLine(value) || NOTHING.empty);
  made.value = value;
  made.dir = "auto";
  return made;
}

export class KeySearch {
  // onPick(key): a key was chosen.
  constructor(onPick) {
    this.box = byId("key-search");
    this.field = byId("key-find");
    this.list = byId("key-list");
    this.onPick = onPick;
    this.keys = [];
    this.at = -1;
    this.field.addEventListener("input", () => this.show());
    this.field.addEventListener("focus", () => this.show());
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("focusout", (event) => {
      if (!this.box.contains(event.relatedTarget)) this.close();
    });
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
    this.list.addEventListener("click", (event) => {
      const entry = event.target.closest("[role=option]");
      if (entry) this.pick(entry.chosenKey);
    });
  }

  fill(keys) {
    this.keys = keys;
    this.box.hidden = keys.length <= FEW;
  }

  close() {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
  }

  show() {
    const wanted = this.field.value.trim().toLocaleLowerCase();
    const found = this.keys.filter((key) => key.toLocaleLowerCase().includes(wanted));
    this.at = wanted && found.length ? 0 : -1;
    this.list.replaceChildren(...found.slice(0, LISTED).map(entry));
    const rest = found.length - LISTED;
    if (!found.length) this.list.append(element("li", "No stream key has this in its name.", "note"));
    if (rest > 0) this.list.append(element("li", `and ${rest} more: type more of the name`, "note"));
    this.list.hidden = false;
    this.field.setAttribute("aria-expanded", "true");
    this.mark();
  }

  mark() {
    const entries = [...this.list.querySelectorAll("[role=option]")];
    for (const [index, one] of entries.entries()) one.setAttribute("aria-selected", `${index === this.at}`);
    const active = entries[this.at];
    if (active) {
      this.field.setAttribute("aria-activedescendant", active.id);
      active.scrollIntoView({ block: "nearest" });
    } else this.field.removeAttribute("aria-activedescendant");
  }

  key(event) {
    const entries = [...this.list.querySelectorAll("[role=option]")];
    if (event.key === "Escape") {
      this.field.value = "";
      this.close();
    } else if (event.key === "Enter" && entries.length) {
      event.preventDefault();
      this.pick(entries[Math.max(0, this.at)].chosenKey);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && entries.length) {
      event.preventDefault();
      this.at = Math.min(entries.length - 1, Math.max(0, this.at + (event.key === "ArrowDown" ? 1 : -1)));
      this.mark();
    }
  }

  pick(key) {
    this.field.value = "";
    this.close();
    this.onPick(key);
  }
}

function entry(key, index) {
  const made = element("li", oneLine(key) || NOTHING.empty);
  made.id = `key-${index}`;
  made.chosenKey = key;
  made.dir = "auto";
  made.setAttribute("role", "option");
  return made;
}
