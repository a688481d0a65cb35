// Making and filling elements; what is written is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// A name from outside, isolated so that its writing direction does not affect the text around it.
export function named(text, name = "bdi") {
  const made = element(name, text);
  made.dir = "auto";
  return made;
}

export function button(text, kind, onClick) {
  const made = element("button", text, kind);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

export function drawing(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, `${value}`);
  if (text !== undefined) made.textContent = text;
  return made;
}

// What pops up goes with a click beside it, and with Escape, which gives the focus back to what opened it.
export function closePopovers() {
  const open = () => document.querySelectorAll("details.pop[open]");
  addEventListener("pointerdown", ({ target }) => {
    for (const one of open()) if (!one.contains(target)) one.open = false;
  });
  addEventListener("keydown", ({ key }) => {
    for (const one of key === "Escape" ? open() : []) {
      one.open = false;
      one.querySelector("summary").focus();
    }
  });
}

// A table of texts.
export function fillTable(table, head, rows) {
  const thead = document.createElement("thead");
  thead.append(cells(head, "th"));
  const tbody = document.createElement("tbody");
  tbody.append(...rows.map((row) => cells(row, "td")));
  table.replaceChildren(thead, tbody);
}

function cells(texts, kind) {
  const tr = document.createElement("tr");
  for (const text of texts) {
    const cell = element(kind, text);
    if (kind === "th") cell.scope = "col";
    tr.append(cell);
  }
  return tr;
}

// Writes only what is new: readers aloud say what is written.
export function set(made, text) {
  if (made.textContent !== text) made.textContent = text;
}
