// The page: what is chosen, what is shown of it, and its state.

import { answersOf, question, remarks, showAnswers } from "./answers.js";
import { Board } from "./board.js";
import { Chart } from "./chart.js";
import { Exact } from "./exact.js";
import { Followed, View, isQuantile, quantileItem } from "./model.js";
import { NoToken, ask, setToken, takeToken } from "./net.js";
import { Bins } from "./numbers.js";
import { personTable } from "./person.js";
import { startTheme } from "./theme.js";
import { KAFKA, NOTHING, about, about2sd, count, errorBar, guarantee, oneLine, purpose, quantileName, span, threshold, time } from "./words.js";

const byId = (id) => document.getElementById(id);
const CATALOGUE_MS = 30000;
const SOON_MS = 1000;

const view = new View();
const board = new Board(byId("scroller"), (label) => choose(label));
const bins = new Bins(byId("bins"), byId("bin-reading"), byId("quantiles"), byId("bin-numbers"), (label) => choose(label));
const chart = new Chart(byId("chart"), byId("reading"), byId("numbers"));
let catalogue = { histograms: [], state: { kafka: "connecting" } };
let followed = null;
let exact = null;
let connected = false;
let state = { kafka: "connecting" };
let clockOff = 0;
let pinned = null;
let due = false;
let soon = 0;

const hooks = {
  onChange: later,
  onStreams: loadCatalogue,
  onNoToken: showLogin,
  onClock: (now) => (clockOff = now - Date.now()),
  onState: (now) => {
    state = now;
    later();
  },
  onOpen: () => {
    connected = true;
    later();
  },
  onLost: () => {
    connected = false;
    later();
  },
};

// ---- what there is, and what is chosen of it

async function loadCatalogue() {
  try {
    const found = await ask("api/histograms");
    if (!found) return;
    byId("login").hidden = true;
    byId("counts").hidden = false;
    clockOff = found.now - Date.now();
    catalogue = found;
    state = found.state;
    if (found.exact && !exact) exact = new Exact(found.exact, later);
    byId("demo").hidden = !found.exact;
    byId("demo-note").textContent = found.note ?? "";
    document.title = `${found.worker} · Quietcount`;
    settle(true);
    if (view.key === null || state.kafka !== "live") loadSoon();
  } catch (error) {
    if (error instanceof NoToken) showLogin();
    else if (!followed) {
      connected = false;
      loadSoon();
    }
    later();
  }
}

function loadSoon() {
  clearTimeout(soon);
  soon = setTimeout(loadCatalogue, SOON_MS);
}

// Chooses what the address does not name, and follows what is chosen.
function settle(again) {
  const { histograms } = catalogue;
  const entry = histograms.find((one) => one.histogram === view.histogram) ?? histograms.find((one) => one.keys.length) ?? histograms[0];
  if (!entry) return;
  // A key that the server has not seen may still come while it is reading.
  const sure = catalogue.state.kafka === "live" && entry.keys.length && !entry.keys.includes(view.key);
  view.histogram = entry.histogram;
  if (view.key === null || sure) view.key = entry.keys[0] ?? null;
  fillSelect(byId("histogram"), histograms.map((one) => one.histogram), view.histogram);
  fillSelect(byId("key"), entry.keys, view.key);
  view.write(again);
  if (view.key === null) {
    later();
    return;
  }
  if (followed?.histogram !== view.histogram || followed?.key !== view.key) {
    followed?.close();
    pinned = null;
    onScreen = null;
    followed = new Followed(view.histogram, view.key, hooks);
    exact?.watch(view.histogram, view.key);
    byId("find").value = "";
    byId("scroller").scrollTop = 0;
  }
  pin();
  later();
}

function fillSelect(select, values, chosen) {
  const same = select.options.length === values.length && values.every((value, i) => select.options[i].value === value);
  if (!same) {
    select.replaceChildren(
      ...values.map((value) => {
        const option = document.createElement("option");
        option.value = value;
        option.dir = "auto";
        option.textContent = oneLine(value) || NOTHING.empty;
        return option;
      }),
    );
  }
  select.value = chosen;
  select.title = chosen ?? "";
  select.disabled = values.length === 0;
}

function choose(item) {
  view.item = item;
  view.write(true);
  followed?.follow(item);
  later();
}

async function pin() {
  if (view.at === null || !followed) {
    pinned = null;
    return;
  }
  const mine = followed;
  const at = view.at;
  const found = await mine.pinned(at);
  if (mine !== followed || at !== view.at) return;
  pinned = found?.end === at ? found : null;
  if (!pinned && followed.newest) {
    // It is too old to be kept here, or not a tick of this stream.
    view.at = null;
    view.write(true);
  }
  later();
}

async function step(forward) {
  const snapshot = current();
  if (!snapshot || !followed) return;
  const end = await followed.beside(snapshot.end, forward);
  if (end === null) return;
  view.at = end;
  view.write(true);
  await pin();
}

function current() {
  return view.at === null ? live() : (pinned ?? followed?.newest ?? null);
}

// The newest snapshot; in the demo the newest whose exact counts are here too, so that they appear together.
let drawn = null;
let onScreen = null;

function live() {
  const newest = followed?.newest ?? null;
  if (!exact || !newest || exact.ready(newest.end)) drawn = { of: followed, snapshot: newest };
  else if (drawn?.of !== followed || !drawn.snapshot) drawn = { of: followed, snapshot: followed.newestWith((one) => exact.at(one.end)) };
  return drawn.snapshot;
}

// ---- what is shown

function later() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

function draw() {
  drawState();
  const snapshot = current();
  const paused = view.at !== null;
  onScreen = snapshot;
  byId("follow").textContent = paused ? "▶ Follow" : "❚❚ Pause";
  byId("follow").disabled = !snapshot;
  byId("back").disabled = !snapshot;
  byId("forward").disabled = !snapshot || !paused || snapshot.end === followed.newest?.end;
  byId("board-title").replaceChildren(...title(snapshot, paused));
  const items = !snapshot || Boolean(snapshot.items);
  const numeric = Boolean(snapshot?.items && snapshot.edges);
  for (const id of ["scroller", "find-row", "legend"]) byId(id).hidden = !items || numeric;
  byId("answers").hidden = items;
  byId("numeric").hidden = !numeric;
  byId("lead").hidden = !snapshot;
  if (!snapshot) {
    byId("what").textContent = "";
    byId("legend").hidden = true;
    byId("shown").textContent = "";
    const early = ["connecting", "reading"].includes(state.kafka) || (followed && (followed.newest || !followed.known));
    const text = early ? NOTHING.asking : NOTHING.none;
    board.clear(text);
    byId("history").hidden = true;
    byId("guarantee").textContent = text;
    promised = "";
    return;
  }
  byId("lead").textContent = purpose(snapshot.guarantee);
  byId("what").textContent = [about(snapshot.mechanism, numeric ? snapshot.edges : null), items ? "" : remarks(snapshot)].join(" ").trim();
  if (numeric) drawNumbers(snapshot);
  else if (items) drawItems(snapshot);
  else drawAnswers(snapshot);
  drawGuarantee(snapshot);
}

function title(snapshot, paused) {
  const key = document.createElement("bdi");
  key.dir = "auto";
  key.textContent = oneLine(view.key ?? "");
  const when = snapshot ? `, tick ${count(snapshot.tick)}${paused ? `, ended ${time(snapshot.end)}` : ""}` : "";
  return [`${view.histogram ?? ""} of `, key, when];
}

function drawItems(snapshot) {
  const say = threshold(snapshot);
  byId("legend-threshold").hidden = say === null;
  byId("threshold-words").textContent = say ?? "";
  byId("legend-sd").hidden = snapshot.sd === null;
  byId("sd-words").textContent = errorBar(snapshot, horizonOf(snapshot));
  const truth = exact?.at(snapshot.end) ?? null;
  byId("legend-exact").hidden = exact === null;
  board.chosen = chosenItem(snapshot);
  board.show(snapshot, followed.ranksBefore(snapshot), exact ? (truth?.counts ?? new Map()) : null, byId("find").value);
  const total = snapshot.total_items ?? snapshot.items.length;
  const some = snapshot.items.length < total ? `the ${count(snapshot.items.length)} largest of ` : "";
  const hidden = element("span", truth ? `, ${count(truth.hidden)} hidden` : "");
  hidden.className = "exact";
  const found = byId("find").value.trim() ? `${count(board.rows.length)} of ` : "";
  byId("shown").replaceChildren(`${found}${some}${count(total)} item${total === 1 ? "" : "s"} shown`, hidden);
  drawHistory(snapshot, board.chosen);
}

function drawNumbers(snapshot) {
  const quantiles = (snapshot.quantiles ?? []).map((one) => one.q);
  const items = quantiles.map(quantileItem);
  const known = view.item !== null && (!isQuantile(view.item) || items.includes(view.item));
  const chosen = known ? view.item : (items[0] ?? snapshot.items[0]?.[0] ?? null);
  byId("numeric-sd").hidden = snapshot.sd === null;
  byId("numeric-sd-words").textContent = errorBar(snapshot, horizonOf(snapshot));
  byId("numeric-quantile").hidden = !snapshot.quantiles?.length;
  bins.show(snapshot, chosen);
  const at = items.indexOf(chosen);
  drawHistory(snapshot, chosen, at < 0 ? undefined : quantileName(quantiles[at]).name);
}

function horizonOf(snapshot) {
  return catalogue.histograms.find((one) => one.histogram === snapshot.histogram)?.horizon ?? null;
}

function drawHistory(snapshot, chosen, quantile) {
  byId("history").hidden = chosen === null;
  if (chosen === null) return;
  if (followed.item !== chosen) followed.follow(chosen);
  byId("item-name").textContent = quantile ?? (chosen || NOTHING.empty);
  byId("item-name").dir = "auto";
  if (quantile !== undefined) {
    drawChart(snapshot, { words: "Published quantile with its interval over the last ticks.", empty: "It cannot be said at any of these ticks.", half: "95 % interval", measured: true });
    return;
  }
  drawChart(snapshot, {
    words: `${snapshot.sd === null ? "Published count" : `Published count ± ${about2sd(snapshot.sd)}`} over the last ticks.`,
    empty: "Not shown at any of these ticks.",
    half: "± 2 sd",
  });
}

function chosenItem(snapshot) {
  return view.item ?? snapshot.items[0]?.[0] ?? null;
}

function drawAnswers(snapshot) {
  const numeric = answersOf(snapshot).filter((one) => typeof one.value === "number").map((one) => one.query);
  const chosen = numeric.includes(view.item) ? view.item : (numeric[0] ?? null);
  showAnswers(byId("answers"), snapshot, chosen, choose);
  byId("history").hidden = chosen === null;
  if (chosen === null) return;
  if (followed.item !== chosen) followed.follow(chosen);
  byId("item-name").textContent = question(chosen);
  byId("item-name").dir = "ltr";
  drawChart(snapshot, { words: "The answer over the last ticks.", empty: "Nothing has been answered at any of these ticks.", half: "± error" });
}

function drawChart(snapshot, texts) {
  byId("item-words").textContent = texts.words;
  const series = view.at === null ? followed.series : followed.series.filter((point) => point.end <= snapshot.end);
  chart.show(exact ? series.map((point) => ({ ...point, exact: exact.at(point.end)?.counts.get(followed.item) })) : series, texts);
}

let promised = "";

function drawGuarantee(snapshot) {
  const together = catalogue.together ?? null;
  const { words, rows } = guarantee(snapshot, catalogue.histograms, together);
  const text = JSON.stringify([words, rows, together]);
  if (text === promised) return;
  promised = text;
  const list = document.createElement("dl");
  for (const [term, value, explanation] of rows) {
    const dd = document.createElement("dd");
    dd.append(term === "Id" ? element("code", value) : value, " ", element("small", explanation));
    list.append(element("dt", term), dd);
  }
  const paragraphs = words.map(([kind, sentence]) => {
    const p = element("p", sentence);
    p.className = kind;
    return p;
  });
  const notes = paragraphs.filter((p) => p.className === "note");
  const person = personTable(together);
  byId("guarantee").replaceChildren(...paragraphs.filter((p) => p.className !== "note"), list, ...notes, ...(person ? [person] : []));
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function drawState() {
  const newest = followed?.newest ?? null;
  const age = newest ? Math.max(0, Date.now() + clockOff - newest.end) : 0;
  const late = newest && age > 3 * (newest.end - newest.start) + 10000;
  const kafka = state.kafka;
  const [mark, word] = followed && !connected
    ? ["lost", "Reconnecting"]
    : kafka !== "live"
      ? [kafka === "reading" || kafka === "connecting" ? "connecting" : "lost", kafka === "reading" ? "Reading" : "No Kafka"]
      : late
        ? ["late", "Waiting"]
        : newest
          ? ["live", "Live"]
          : ["connecting", "Waiting"];
  byId("state").dataset.state = mark;
  if (byId("connection").textContent !== word) byId("connection").textContent = word;
  byId("age").textContent = newest ? `newest tick ended ${ago(age)}` : "no tick yet";
  const trouble = connected && KAFKA[kafka] && kafka !== "reading" && kafka !== "connecting";
  const text = trouble ? `${KAFKA[kafka]}${kafka === "missing" ? (state.topics ?? []).join(", ") : ""}` : "";
  byId("problem").hidden = !text;
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
}

function ago(ms) {
  return ms < 120e3 ? `${Math.floor(ms / 1000)} s ago` : `${span(ms)} ago`;
}

// ---- the token

function showLogin() {
  const form = byId("login");
  byId("wrong").hidden = form.hidden || !byId("token").value;
  form.hidden = false;
  byId("counts").hidden = true;
  byId("token").value = "";
  byId("token").focus();
  followed?.close();
  followed = null;
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value.trim());
  loadCatalogue();
});

// ---- what the reader does

byId("histogram").addEventListener("change", (event) => {
  Object.assign(view, { histogram: event.target.value, item: null, at: null });
  settle(false);
});
byId("key").addEventListener("change", (event) => {
  Object.assign(view, { key: event.target.value, at: null });
  settle(false);
});
byId("find").addEventListener("input", () => {
  byId("scroller").scrollTop = 0;
  later();
});
byId("follow").addEventListener("click", () => {
  // What is held is what the reader sees, also when a newer tick is about to be drawn.
  view.at = view.at === null ? (onScreen?.end ?? null) : null;
  pinned = view.at === null ? null : onScreen;
  view.write(true);
  later();
});
byId("back").addEventListener("click", () => step(false));
byId("forward").addEventListener("click", () => step(true));
addEventListener("popstate", () => {
  view.read();
  settle(true);
});

takeToken();
startTheme(byId("theme"), later);
loadCatalogue();
setInterval(loadCatalogue, CATALOGUE_MS);
setInterval(drawState, 1000);
