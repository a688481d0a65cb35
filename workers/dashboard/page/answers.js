// What a mechanism that answers questions says: a number, numbers, labels, or labels with counts.

import { NOTHING, count, oneLine } from "./words.js";

const QUESTIONS = {
  max: "Largest count of any item",
  min: "Smallest count of any item",
  argmax: "Item with the largest count",
  histogram: "Count of every item",
  top: "Largest items",
};

export function question(query) {
  const [name, parameter] = query.split(":");
  if (name === "quantile") return Number(parameter) === 0.5 ? "Median count of the items" : `Count below which ${Math.round(parameter * 1000) / 10} % of the items lie`;
  if (name === "top_k") return `The ${parameter} largest counts`;
  if (name === "top_k_select") return `The ${parameter} items with the largest counts`;
  return QUESTIONS[name] ?? query;
}

// [{query, value}] of a snapshot without items.
export function answersOf(snapshot) {
  if (Array.isArray(snapshot.answers)) return snapshot.answers.filter((one) => typeof one?.query === "string");
  if (typeof snapshot.query !== "string") return [];
  if (snapshot.labels) return [{ query: snapshot.query, value: snapshot.labels }];
  return [{ query: snapshot.query, value: snapshot.value }];
}

export function showAnswers(box, snapshot, chosen, onPick) {
  const answers = answersOf(snapshot);
  box.replaceChildren(...answers.map(({ query, value }) => card(query, value, snapshot, query === chosen, onPick)));
}

// What else an answer says of itself, in words.
export function remarks(snapshot) {
  const words = [];
  if (typeof snapshot.error === "number") words.push(`Off by more than ± ${count(snapshot.error)} only with the small probability that the settings name.`);
  if (snapshot.since > 0) words.push(`Answered at tick ${count(snapshot.since)}; it is valid until the counts have grown enough.`);
  if (snapshot.since === 0) words.push("Nothing has been answered yet: the counts are still too small. What you see here is the answer for no data at all.");
  if (snapshot.asked === false && !snapshot.refused) words.push("Nothing was asked at this tick.");
  if (snapshot.refused) words.push("The budget of this epoch is used up: nothing more is answered.");
  if (snapshot.complete === false) words.push("The list ends where items are no longer clearly above the rest.");
  if (typeof snapshot.labels_left === "number") words.push(`Left in this epoch: ${count(snapshot.labels_left)} labels, ${count(snapshot.queries_left)} questions.`);
  return words.join(" ");
}

function card(query, value, snapshot, chosen, onPick) {
  const numeric = typeof value === "number";
  const box = document.createElement(numeric ? "button" : "section");
  box.className = "answer";
  if (numeric) {
    box.type = "button";
    box.setAttribute("aria-pressed", `${chosen}`);
    box.addEventListener("click", () => onPick(query));
  }
  const title = document.createElement(numeric ? "div" : "h3");
  title.textContent = question(query);
  box.append(title);
  if (Array.isArray(value)) {
    const list = document.createElement("ol");
    list.append(...value.map((entry) => element("li", Array.isArray(entry) ? `${text(entry[0])}: ${count(entry[1])}` : text(entry))));
    box.append(value.length ? list : element("p", "none"));
  } else {
    const big = element("div", text(value));
    big.className = "value";
    box.append(big);
  }
  if (typeof snapshot.error === "number" && (numeric || Array.isArray(value))) {
    const note = element("p", `± ${count(snapshot.error)}`);
    note.className = "note";
    box.append(note);
  }
  return box;
}

function text(value) {
  if (typeof value === "number") return count(value);
  if (value === null || value === undefined) return "–";
  return oneLine(`${value}`) || NOTHING.empty;
}

function element(name, content) {
  const made = document.createElement(name);
  const inner = document.createElement("bdi");
  inner.dir = "auto";
  inner.textContent = content;
  made.append(inner);
  return made;
}
