// The table of what one person loses, as the server computed it for all histograms together.

import { upTo } from "./promise.js";
import { count } from "./words.js";

// An element with the table, or null where there is none.
export function personTable(together) {
  const spans = (together?.person ?? []).filter((one, i, all) => i === 0 || one.epochs > all[i - 1].epochs);
  if (!spans.length) return null;
  const user = together.unit === "user";
  const box = element("div", "");
  box.className = "person";
  const wide = element("div", "");
  wide.className = "wide";
  const table = element("table", "");
  table.className = "plain-numbers";
  const caption = element("caption", "What one person loses");
  const head = element("tr", "");
  head.append(header(user ? "User ids" : "Events", "col"), ...spans.map((one) => header(heading(one), "col")));
  const body = spans[0].losses.map((_, i) => {
    const row = element("tr", "");
    row.append(header(count(spans[0].losses[i].events), "row"), ...spans.map((one) => cell(one.losses[i])));
    return row;
  });
  if (spans[0].weekly) {
    const row = element("tr", "");
    row.append(header("1 a week", "row"), ...spans.map((one) => cell(one.weekly)));
    body.push(row);
  }
  table.append(caption, section("thead", [head]), section("tbody", body));
  wide.append(table);
  const many = together.histograms.length > 1 ? ", over all histograms here" : "";
  const of = user ? "user ids who appears in every epoch" : "events in every epoch";
  const whose = { all: "events in all, ever (one event a week makes 53 a year)", some: `${of}, which in a histogram without epochs all count together` }[spans[0].without_epochs] ?? of;
  const note = element("p", `ε and δ for a person with this many ${whose}${many}. Void: ε is above 20 or δ 0.01 or more, so next to nothing, or nothing, is promised.`);
  note.className = "note";
  box.append(wide, note);
  return box;
}

function heading({ days, epochs, without_epochs: without }) {
  if (without === "all") return "ever";
  if (days === null) return "an epoch";
  const name = days === 1 ? "a day" : days === 365 ? "a year" : `${days} days`;
  return `${name}: ${count(epochs)} epoch${epochs === 1 ? "" : "s"}`;
}

function cell({ epsilon, delta, void: empty }) {
  const td = element("td", empty || epsilon === null ? "void" : `${upTo(epsilon)}, ${upTo(delta, 2)}`);
  if (empty) td.className = "void";
  return td;
}

function header(text, scope) {
  const th = element("th", text);
  th.scope = scope;
  return th;
}

function section(name, rows) {
  const made = element(name, "");
  made.append(...rows);
  return made;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}
