// The page: what is chosen, what is shown of it, and its state.

import { answersOf, question, remarks, showAnswers } from "./answers.js";
import { Board } from "./board.js";
import { Changes } from "./changes.js";
import { Chart } from "./chart.js";
import { byId, button, closePopovers, element, named, set } from "./dom.js";
import { Exact } from "./exact.js";
import { linkFiles } from "./files.js";
import { Item } from "./item.js";
import { AllKeys } from "./keys.js";
import { Followed, isQuantile, quantileItem } from "./model.js";
import { TIMES, canSubtract, differenceSd, ends, isCounted, least, mostHidden, movesIn, others } from "./noise.js";
import { NoToken, asked, setToken, takeToken } from "./net.js";
import { Bins, bucketName } from "./numbers.js";
import { rateOf } from "./ranges.js";
import { nextOrder } from "./order.js";
import { Periods } from "./periods.js";
import { personTable } from "./person.js";
import { KeySearch, fillSelect } from "./picker.js";
import { showStanding, showTitle } from "./standing.js";
import { startTheme } from "./theme.js";
import { startTips } from "./tips.js";
import { View, isTick } from "./view.js";
import { beginning, capital, epochName, moment, periodWords, slidingWords, timeZone, windowWords } from "./when.js";
import { Earlier, namesOf, seriesLike, seriesOf, windowsOf } from "./windows.js";
import { NOTHING, about, atMost, axisWords, band, belowWords, count, duration, earlierBy, errorBar, fieldName, fieldWords, guarantee, hiddenWords, hours, isRunning, newlyWords, nothingShown, ofUsers, oneLine, purpose, quantileName, rated, span, sumLegend, summaryWords, threshold, time, timeOf, windowBar } from "./words.js";

const CATALOGUE_MS = 30000;
const SOON_MS = 1000;
// So long the window before stays on the screen while the chosen one is on its way.
const HELD_MS = 1500;
// So many names are offered where one is not there.
const OFFERED = 12;
const OTHER_WINDOW = "these counts are published for the windows above, and for no other time";

const view = new View();
const board = new Board(byId("scroller"), (label, again) => changeView({ item: label }, again), (by) => changeView({ order: nextOrder(view.order, by) }));
const bins = new Bins(byId("bins"), byId("bin-reading"), byId("quantiles"), byId("bin-numbers"), (label) => changeView({ item: label }));
const chart = new Chart(byId("chart"), byId("reading"), byId("numbers"), (from, to) => changeView({ range: `${from}-${to}` }));
const keySearch = new KeySearch((key) => chooseKey(key));
const allKeys = new AllKeys({ onPick: (key, item) => pickFromAll(key, item), onNoToken: showLogin });
let catalogue = { histograms: [], state: { kafka: "connecting" } };
let followed = null;
let exact = null;
let connected = null;
let state = { kafka: "connecting" };
let clockOff = 0;
let pinned = null;
// Where a tick that the address names is not kept: the nearest that are.
let missing = null;
// Of which state of the history the line and the epochs are.
let historyAsked = "";
let before = null;
let due = false;
let soon = 0;

const hooks = {
  onChange: later,
  onStreams: loadCatalogue,
  onSnapshot: (snapshot) => {
    item.take(snapshot);
    periods.take(snapshot);
  },
  onGap: () => {
    item.again();
    periods.load();
  },
  // The history is read beside the ticks that come live: what it has found since is asked for.
  onHistory: (history) => {
    catalogue.history = history;
    later();
  },
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
    if (connected !== null) connected = false;
    later();
  },
};

const now = () => Date.now() + clockOff;
const horizonOf = (histogram) => catalogue.histograms.find((one) => one.histogram === histogram)?.horizon ?? null;
const keys = () => catalogue.histograms.find((one) => one.histogram === view.histogram)?.keys ?? [];
// While the history is being read the last ticks are shown, and how far it is; then it is asked, for keys that there are.
const hasHistory = () => ["live", "waiting"].includes(catalogue.history?.state) && (Boolean(followed?.newest) || keys().includes(view.key));
hooks.hasHistory = hasHistory;
// Whether a stream may have snapshots: not if all keys have been read and it is not among them.
const mayExist = (histogram, key) => catalogue.state.kafka !== "live" || (catalogue.histograms.find((one) => one.histogram === histogram)?.keys ?? []).includes(key);
hooks.mayExist = mayExist;
const changes = new Changes({ onChange: later, onNoToken: showLogin });
const earlier = new Earlier({ onChange: later });
const item = new Item(chart, view, { onView: changeView, onChange: later, onNoToken: showLogin, now, keys, hasHistory, changes, horizonOf, readWords: () => readWords(), first: () => periods.first, beganOf: (id) => periods.beganOf(id), windows: () => windows(), totals: () => totals(), fieldName: () => fieldName(entry()), bandWords: (snapshot) => band(snapshot) });
const periods = new Periods({ onPick: (at, id) => changeTick(at, id), onChange: later, onNoToken: showLogin, now, horizonOf, hasHistory });

// ---- what there is, and what is chosen of it

async function loadCatalogue() {
  try {
    // 503: not all is read; what is known so far comes with it.
    const { status, body: found } = await asked("api/histograms");
    if (!found.histograms) throw new Error(`the server answers with ${status}`);
    for (const one of found.histograms) one.keys ??= [];
    byId("login").hidden = true;
    clockOff = found.now - Date.now();
    catalogue = found;
    state = found.state;
    if (found.exact && !exact) exact = new Exact(found.exact, later);
    byId("demo").hidden = !found.exact;
    byId("demo-note").textContent = found.note ?? "";
    settle(true);
    if (!followed && connected === null) connected = true;
    if (view.key === null || state.kafka !== "live") loadSoon();
  } catch (error) {
    if (error instanceof NoToken) showLogin();
    else if (!followed) {
      if (connected !== null) connected = false;
      loadSoon();
    }
    later();
  }
}

function loadSoon() {
  clearTimeout(soon);
  soon = setTimeout(loadCatalogue, SOON_MS);
}

// Choose what the address leaves open, and follow the choice. A named thing that does not exist is reported, never replaced.
function settle(again) {
  const { histograms } = catalogue;
  const entry = seriesOf(histograms, view);
  fillSelect(byId("histogram"), namesOf(histograms), entry?.name ?? null);
  fillSelect(byId("key"), entry?.keys ?? [], view.key);
  keySearch.fill(entry?.keys ?? []);
  if (!entry) {
    followed?.close();
    followed = null;
    later();
    return;
  }
  view.histogram = entry.histogram;
  // A window of this histogram is a series: the address names that.
  if (entry.window_ms !== null && view.window === duration(entry.window_ms)) view.window = null;
  if (view.key === null) {
    view.key = entry.keys[0] ?? null;
    byId("key").value = view.key;
  }
  view.write(again);
  if (view.key === null) {
    later();
    return;
  }
  if (followed?.histogram !== view.histogram || followed?.key !== view.key) {
    // Another window of the same counts: what was sought stays sought, and the one before is shown until the new one is here.
    const sameCounts = followed !== null && followed.key === view.key && windows().some((one) => one.histogram === followed.histogram);
    held = sameCounts ? performance.now() + HELD_MS : 0;
    if (sameCounts) setTimeout(later, HELD_MS);
    followed?.close();
    pinned = missing = before = null;
    if (!sameCounts) onScreen = null;
    followed = new Followed(view.histogram, view.key, hooks);
    changes.clear();
    earlier.clear();
    periods.follow(view.histogram, view.key);
    exact?.watch(view.histogram, view.key);
    if (!sameCounts) byId("scroller").scrollTop = 0;
  }
  pin();
  later();
}

// The windows of what is looked at, shortest first; none of a histogram with epochs.
const windows = () => (entry().window_ms ? windowsOf(catalogue.histograms, entry().name) : []);

// Other histograms that count the same items since an epoch began.
const totals = () => catalogue.histograms.filter((one) => one.window_ms === null && entry().also_in?.includes(one.histogram) && one.keys.includes(view.key));

// A tick has the same time and number in every window, but not the same id.
function chooseWindow(histogram) {
  Object.assign(view, { histogram, id: null, window: null, since: null });
  settle(false);
}

function chooseKey(key) {
  Object.assign(view, { key, at: null, id: null });
  settle(false);
}

// Of all keys side by side one is looked at, with an item of it.
function pickFromAll(key, item) {
  view.all = null;
  if (item !== null) view.item = item;
  if (key === view.key) changeView({});
  else chooseKey(key);
}

function chooseHistogram(name) {
  const { histogram } = seriesLike(catalogue.histograms, name, entry().window_ms);
  Object.assign(view, { histogram, item: null, at: null, id: null, with: [], keys: [], unit: null, window: null, since: null, find: null, order: null });
  // The same key of another histogram, where there is one.
  if (!keys().includes(view.key)) view.key = null;
  settle(false);
}

// What is looked at, and beside what; again: "back" need not stop at what was before.
function changeView(changed, again = false) {
  Object.assign(view, changed);
  view.write(again);
  later();
}

// Holds a tick, by a time, or follows the newest one.
function changeTick(at, id) {
  Object.assign(view, { at, id });
  view.write(false);
  later();
  return pin();
}

async function pin() {
  if (view.at === null || !followed) {
    pinned = missing = null;
    return;
  }
  const mine = followed;
  const { at, id } = view;
  const found = typeof at === "number" ? await mine.pinned(at, id) : { snapshot: null, nearest: null };
  if (mine !== followed || at !== view.at || id !== view.id) return;
  if (found === null) {
    loadSoon(); // the server is away, or has not read that far
    return;
  }
  pinned = found.snapshot;
  missing = pinned ? null : { at, nearest: found.nearest };
  later();
}

async function step(forward) {
  const snapshot = current();
  if (!snapshot || !followed) return;
  const found = await followed.beside(snapshot, forward);
  if (found === null) return;
  await changeTick(found.end, null);
}

// A tick that is held and not here is not replaced by another.
function current() {
  return view.at === null ? live() : pinned;
}

// The epoch before a snapshot's, at the same time of it: {snapshot, shift, name}, or null while it is not known.
function besides(snapshot) {
  if (snapshot.window) return besidesWindow(snapshot);
  const width = snapshot.end - snapshot.start;
  const horizon = horizonOf(view.histogram);
  byId("beside-label").hidden = !horizon || !isRunning(snapshot.mechanism) || (periods.epochs.length < 2 && view.beside === null);
  if (!horizon || !isRunning(snapshot.mechanism)) return null;
  const shift = horizon * width;
  const called = shift === 86400e3 ? "the day before" : "the one before";
  // Series that do not begin at the same time of their epochs have counted for different times.
  const late = (one) => periods.began(one) - beginning(one);
  const counted = (one) => one.end - periods.began(one);
  const comparable = view.beside === null || !before?.snapshot || late(before.snapshot) === late(snapshot);
  const why = view.beside !== null && before && !before.loading && !before.snapshot ? ", of which nothing is kept for this time" : comparable ? "" : `, which counts since ${moment(periods.began(before.snapshot), now())}: ${hours(counted(before.snapshot))} against ${hours(counted(snapshot))}`;
  set(byId("beside-words"), `beside ${called}${why}`);
  byId("beside").checked = view.beside !== null;
  if (view.beside === null) return null;
  const at = snapshot.end - shift;
  if (before?.at !== at && !before?.loading) loadBefore(at);
  // While the tick that belongs to a new one is on its way, the one before it is shown.
  const from = beginning(snapshot) - shift;
  return { snapshot: before?.snapshot ?? null, shift, name: `${called} (${comparable ? epochName(from, from + shift, now()) : `since ${moment(periods.began(before.snapshot), now())}`})`, comparable };
}

// How long before a window without epochs another one is shown beside it.
const EARLIER = new Map([["1h", [3600e3, "the hour before"]], ["1d", [86400e3, "the day before"]], ["7d", [7 * 86400e3, "the week before"]]]);

// The same window at an earlier time.
function besidesWindow(snapshot) {
  byId("beside-span").value = EARLIER.has(view.beside) ? view.beside : "";
  if (!EARLIER.has(view.beside)) return null;
  const [shift, name] = EARLIER.get(view.beside);
  const at = snapshot.end - shift;
  if (before?.at !== at && !before?.loading) loadBefore(at);
  const then = before?.snapshot ?? null;
  const whole = (one) => periods.began(one) <= one.window.from;
  return { snapshot: then, shift, name, comparable: then === null || (whole(then) && whole(snapshot)) };
}

async function loadBefore(at) {
  const mine = followed;
  before = { at, snapshot: before?.snapshot ?? null, loading: true };
  const found = await mine.pinned(at, null);
  if (mine !== followed) return;
  if (found === null) {
    setTimeout(() => mine === followed && before?.at === at && loadBefore(at), SOON_MS);
    return;
  }
  before = { at, snapshot: found.snapshot, loading: false };
  later();
}

// The newest snapshot; in the demo, the newest one with exact counts, so that both appear together.
let drawn = null;
let onScreen = null;
let held = 0;

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

// The catalogue, the stream and a first snapshot each tell whether there is a history and how much of it has been read.
function askAgain() {
  const found = JSON.stringify([hasHistory(), catalogue.history?.state, catalogue.history?.read]);
  if (found === historyAsked) return;
  historyAsked = found;
  item.again();
  periods.load();
  changes.clear();
}

function draw() {
  askAgain();
  drawState();
  drawUnknown();
  const all = view.all === "keys" && entry().histogram !== undefined && byId("login").hidden;
  allKeys.follow(all ? view.histogram : null, keys().length);
  byId("counts").hidden = all || !byId("login").hidden;
  byId("all-keys-open").hidden = all || keys().length < 2;
  const keyName = fieldWords(entry().key_field) ?? "stream key";
  set(byId("key-title"), capital(keyName));
  set(byId("all-keys-open"), `Every ${keyName}`);
  set(byId("all-keys-close"), `One ${keyName}`);
  if (all) set(byId("all-keys-title"), `${shownName()}, every ${keyName}`);
  const snapshot = current();
  const paused = view.at !== null;
  if (!snapshot && missing === null && performance.now() < held) return;
  held = 0;
  onScreen = snapshot;
  byId("follow").textContent = paused ? "▶ Follow" : "❚❚ Pause";
  byId("follow").disabled = !snapshot && !paused;
  byId("back").disabled = !snapshot;
  byId("forward").disabled = !snapshot || !paused || snapshot.end === followed.newest?.end;
  byId("board-title").replaceChildren(...title(snapshot, paused));
  const items = !snapshot || Boolean(snapshot.items);
  const numeric = Boolean(snapshot?.items && snapshot.edges);
  byId("guarantee").parentElement.hidden = false;
  byId("answers").hidden = items;
  byId("lead").hidden = !snapshot;
  byId("beside-label").hidden = true;
  byId("beside-span-label").hidden = !snapshot?.window || !hasHistory();
  if (byId("find").value !== (view.find ?? "")) byId("find").value = view.find ?? "";
  drawWindows(snapshot, paused);
  // What the board shows: the counts, or what came in a window; null while that is on its way, or cannot be said.
  const sliding = windows().length > 0;
  const windowed = snapshot && view.span ? (sliding ? { snapshot: null, error: OTHER_WINDOW } : changes.of(snapshot, view.span)) : null;
  const shown = snapshot && view.span ? (windowed?.snapshot ?? null) : snapshot;
  byId("numeric").hidden = !numeric || !shown;
  byId("scroller").hidden = numeric ? shown !== null : !items;
  for (const id of ["find-row", "board-foot"]) byId(id).hidden = !items || numeric || !shown;
  byId("flat").hidden = true;
  byId("below").hidden = true;
  byId("what").hidden = !snapshot || (items && !numeric);
  for (const id of ["summary", "shown"]) if (!items || numeric || !shown) set(byId(id), "");
  byId("numeric-legend").hidden = !numeric || !shown;
  boardShown = items ? shown : null;
  if (!snapshot) {
    byId("what").textContent = "";
    const early = ["connecting", "reading"].includes(state.kafka) || (followed && (followed.newest || !followed.known));
    const text = unknown() || missing ? "" : `${readWords()}${early || view.at !== null ? NOTHING.asking : NOTHING.none}`;
    byId("period").textContent = "";
    periods.draw(null);
    board.clear(text);
    // The line above says what is missing; hide whatever could be mistaken for a result.
    byId("scroller").hidden = !text;
    byId("guarantee").parentElement.hidden = !text;
    byId("history").hidden = true;
    byId("promise").textContent = text;
    byId("figures").hidden = true;
    promised = "";
    return;
  }
  const period = shown?.change ? windowWords(shown, view.since, now()) : snapshot.window ? slidingWords(snapshot, periods.began(snapshot), paused, now()) : periodWords(snapshot, periods.began(snapshot), horizonOf(view.histogram), now());
  set(byId("period"), shown === null && sliding ? "" : `${period}.`);
  byId("period").title = `Times are in ${timeZone()}. ${snapshot.window ? "Tick" : `Epoch ${count(snapshot.epoch)}, tick`} ${count(snapshot.tick)}.`;
  byId("lead").textContent = purpose(snapshot.guarantee);
  byId("what").textContent = [about(snapshot, numeric ? snapshot.edges : null, Boolean(view.span) && !sliding), items ? "" : remarks(snapshot)].join(" ").trim();
  if (shown === null) board.clear(windowed?.error ? `Nothing can be said of this window: ${windowed.error}.` : NOTHING.asking);
  else if (numeric) drawNumbers(shown);
  else if (items) drawItems(shown);
  else drawAnswers(snapshot);
  if (items) drawHistory(snapshot, shown);
  drawGuarantee(snapshot);
  drawFoot(snapshot);
  periods.draw(snapshot);
}

// The windows that the board can be of: those of the settings, and since any time. Without epochs each of them is a series.
function drawWindows(snapshot, paused) {
  const sliding = windows();
  byId("windows").hidden = view.span === null && !sliding.length && !(snapshot && canSubtract(snapshot));
  byId("since-details").hidden = sliding.length > 0;
  const chipText = (ms) => (paused ? capital(`${timeOf(ms)} before`) : `Last ${timeOf(ms)}`);
  if (sliding.length) {
    drawChips(sliding.map(({ histogram, window_ms }) => ({ text: chipText(window_ms), chosen: view.span === null && view.histogram === histogram, choose: () => chooseWindow(histogram) })));
    return;
  }
  const windowsHere = (snapshot?.windows ?? []).map(({ ms }) => ({ text: chipText(ms), window: duration(ms) }));
  if (view.window !== null && !windowsHere.some((one) => one.window === view.window)) windowsHere.push({ text: `Last ${view.window}`, window: view.window });
  drawChips([{ text: "All of it", window: null }, ...windowsHere].map(({ text, window }) => ({ text, chosen: view.since === null && view.window === window, choose: () => changeView({ window, since: null }) })));
  byId("since-open").setAttribute("aria-pressed", `${view.since !== null}`);
}

// chips: [{text, chosen, choose}].
function drawChips(chips) {
  const text = JSON.stringify([view.histogram, chips]);
  if (text === windowsDrawn) return;
  windowsDrawn = text;
  byId("windows-row").replaceChildren(...chips.map(({ text, chosen, choose }) => {
    const chip = button(text, "chip", choose);
    chip.setAttribute("aria-pressed", `${chosen}`);
    return chip;
  }));
}

let windowsDrawn = "";

function title(snapshot, paused) {
  const key = named(oneLine(view.key ?? ""));
  // Without epochs ticks are numbered from 1970 on, which says nothing.
  const tick = snapshot && !snapshot.window ? `, tick ${count(snapshot.tick)}` : "";
  const when = snapshot && paused ? `, ended ${time(snapshot.end)}` : "";
  return [`${entry().name ?? view.histogram ?? ""} of `, key, element("span", `${tick}${when}`, "detail")];
}

// What the address names and is not here, in words; "" while that cannot be known.
function unknown() {
  const { histograms } = catalogue;
  if (!histograms.length) return "";
  if (view.histogram !== null && !histograms.some((one) => one.histogram === view.histogram)) {
    return `There is no histogram “${oneLine(view.histogram)}” here. These are:`;
  }
  const entry = histograms.find((one) => one.histogram === view.histogram);
  if (!entry?.keys.length || view.key === null || entry.keys.includes(view.key) || followed?.newest || state.kafka !== "live" || !followed?.known) return "";
  return `Nothing has been published for a stream key “${oneLine(view.key)}” of ${view.histogram}. It is shown as soon as something is. The keys that are there:`;
}

function drawUnknown() {
  const text = unknown();
  byId("unknown").hidden = !text;
  drawOffers(text);
  byId("missing").hidden = missing === null;
  if (missing === null || missing === missingDrawn) return;
  missingDrawn = missing;
  const { at, nearest } = missing;
  const what = typeof at !== "number" ? `“${at}” is neither a time nor a tick.` : isTick(at) ? `Tick ${count(at)} is not kept here.` : `No tick is kept here that holds ${moment(at, now(), true)}.`;
  const ways = [["before", "The nearest before it"], ["after", "The nearest after it"]].filter(([name]) => nearest?.[name]);
  byId("missing").replaceChildren(
    element("span", what),
    ...ways.map(([name, words]) => button(`${words}: ${moment(nearest[name].end, now(), true)}`, "plain", () => changeTick(nearest[name].end, nearest[name].id ?? null))),
    button("The newest tick", "plain", () => changeTick(null, null)),
  );
}

let missingDrawn = null;

// What is said of a name that is not there, with those that are.
function drawOffers(text) {
  const known = catalogue.histograms.some((one) => one.histogram === view.histogram);
  const names = known ? keys() : namesOf(catalogue.histograms);
  const drawn = JSON.stringify([text, names]);
  if (!text || drawn === offersDrawn) return;
  offersDrawn = drawn;
  const choose = (name) => () => (known ? chooseKey(name) : chooseHistogram(name));
  const rest = names.length > OFFERED ? [element("span", `and ${count(names.length - OFFERED)} more in the list above.`)] : [];
  byId("unknown").replaceChildren(element("span", text), ...names.slice(0, OFFERED).map((name) => button(oneLine(name) || NOTHING.empty, "plain", choose(name))), ...rest);
}

let offersDrawn = "";

function drawItems(snapshot) {
  const { change, window } = snapshot;
  const counted = ofUsers(window) ? "Users" : "Count";
  set(byId("threshold-words"), threshold(snapshot, windows().map((one) => one.window_ms)) ?? "");
  set(byId("sd-words"), snapshot.sd === null ? "" : capital(change ? windowBar(change) : errorBar(snapshot, ticksTested(snapshot))));
  set(byId("count-head"), change ? "Counted" : counted);
  set(byId("count-words"), `${byId("what").textContent} What noise alone may make is not written as a number: “at most”.`);
  const earlierBoard = window && periods.knows(snapshot) ? earlier.of(followed, snapshot, periods.began(snapshot)) : null;
  const passed = window ? passedWords(window, earlierBoard) : `Items passed in ${change ? "their counts since the window began" : `the last ${span(Math.min(10, snapshot.tick) * (snapshot.end - snapshot.start))}`}, beyond noise`;
  set(byId("passed-words"), `▲ ▼: ${passed[0].toLowerCase()}${passed.slice(1)}.`);
  const truth = exact?.at(snapshot.end) ?? null;
  board.chosen = chosenItem(snapshot);
  const beside = change ? null : besides(snapshot);
  if (beside?.snapshot) {
    const then = moment(beside.snapshot.end, now());
    // Of a window that reaches back before counting began only a part was counted.
    const isWhole = (one) => one.window && periods.began(one) <= one.window.from;
    const length = (one) => (beside.comparable || isWhole(one) ? "" : ` (${window ? "only " : ""}${hours(one.end - periods.began(one))})`);
    set(byId("before-head"), `${then}${length(beside.snapshot)}`);
    set(byId("count-head"), `${counted}${length(snapshot)}`);
    set(byId("before-words"), beside.comparable ? `At ${then}, for comparison. The change since is a number where noise does not explain it, else ≈.` : `At ${then}, for comparison; it counted for another time.`);
  }
  const rest = others(snapshot, change ? current() : null);
  const unlisted = hiddenWords(mostHidden(current() ?? snapshot), window);
  byId("others-words").hidden = rest === null;
  if (snapshot.sums) set(byId("sums-words"), sumLegend(snapshot, fieldName(entry())));
  for (const one of document.querySelectorAll(".sum-field")) set(one, fieldName(entry()));
  const rate = rateOf(snapshot, view.per);
  byId("per-label").hidden = rate === undefined;
  byId("per").value = rate ? view.per : "";
  if (rate) set(byId("count-head"), capital(rate.words));
  board.show(snapshot, {
    rate: rate ?? null,
    rest,
    moves: change ? movesIn(snapshot) : window ? earlier.moves(snapshot, earlierBoard) : followed.moves(snapshot),
    newly: newlyWords(window),
    exact: exact && exact.counts(snapshot),
    wanted: view.find ?? "",
    order: view.order,
    before: beside?.snapshot ? compared(snapshot, rest, beside) : null,
    found: [NOTHING.found, unlisted && `Of one that is not shown, ${unlisted}.`].join(" ").trim(),
    nothing: nothingShown(snapshot, beganWithin(snapshot) ? periods.began(snapshot) : null),
  });
  const total = snapshot.total_items ?? snapshot.items.length;
  const some = snapshot.items.length < total ? `the ${count(snapshot.items.length)} largest of ` : "";
  const hidden = element("span", truth ? `, ${count(truth.hidden)} hidden` : "");
  hidden.className = "exact";
  const found = view.find?.trim() ? `${count(board.rows.length)} of ` : "";
  byId("below").hidden = !board.reachable.some((row) => board.isBelow(row));
  set(byId("below"), belowWords(snapshot, windows().map((one) => one.window_ms)));
  set(byId("newly-words"), `Newly shown: ${newlyWords(window)}.`);
  set(byId("summary"), summaryWords(board.ranked, snapshot.sd, rate ?? null, ofUsers(window)));
  const flat = (change || window) && snapshot.sd !== null && board.all > 0 && !snapshot.items.some(([label, value]) => isCounted(least(change, label, value), snapshot.sd, total));
  byId("flat").hidden = !flat;
  const gone = window && beside && !beside.snapshot && !before?.loading ? `; nothing is kept of ${beside.name}` : "";
  byId("shown").replaceChildren(`${found}${some}${count(total)} item${total === 1 ? "" : "s"} shown`, hidden, inAll(snapshot.all_items), snapshot.all_items && !rest ? `; ${NOTHING.others}` : "", gone);
}

// What all that is shown or not counted together, where the settings give it a share of the budget.
function inAll(all) {
  if (!all) return "";
  const off = TIMES * all.sd;
  return `; in all, shown or not: ${all.count > off ? rated(all.count, off, null).join(" ± ") : atMost(all.count + off)}`;
}

// The snapshot beside, with what noise may make of a difference of two counts, and of two counts of all that is not listed.
function compared(snapshot, rest, { snapshot: then, comparable }) {
  const sd = differenceSd(snapshot, then);
  const restThen = others(then);
  const restSd = !rest || !restThen ? null : (snapshot.id === then.id ? rest.sd + restThen.sd : Math.hypot(rest.sd, restThen.sd));
  return { snapshot: then, comparable, rest: restThen, off: sd === null ? null : TIMES * sd, restOff: restSd === null ? null : TIMES * restSd };
}

// Against which board the arrows are, and what they allow for.
function passedWords({ ms }, board) {
  if (!board) return `Items passed since ${earlierBy(ms)}: not known, as no whole ${timeOf(ms)} of then is kept`;
  return `Items passed since ${earlierBy(ms)} (${moment(board.end, now())}), where noise in both boards cannot explain it, whatever part of it they share`;
}

// The ticks at which an item may have been tested: of an epoch, or without epochs all of them.
function ticksTested(snapshot) {
  if (!snapshot.window) return horizonOf(snapshot.histogram);
  return Math.ceil((snapshot.end - periods.began(snapshot)) / (snapshot.end - snapshot.start));
}

// Whether counting began in the time that is counted.
const beganWithin = (snapshot) => (snapshot.window ? periods.began(snapshot) > snapshot.window.from : isRunning(snapshot.mechanism));

function drawNumbers(snapshot) {
  byId("numeric-sd").hidden = snapshot.sd === null;
  byId("numeric-sd-words").textContent = snapshot.change ? windowBar(snapshot.change) : errorBar(snapshot, ticksTested(snapshot));
  byId("numeric-quantile").hidden = !snapshot.quantiles?.length;
  bins.show(snapshot, chosenItem(snapshot), entry());
}

// The item beside the board: its line, and what the board's window says of it.
function drawHistory(snapshot, shown) {
  const chosen = chosenItem(shown ?? snapshot);
  byId("history").hidden = chosen === null;
  if (chosen === null) return;
  const quantile = isQuantile(chosen) && snapshot.edges ? quantileName(Number(chosen.slice(2))).name : undefined;
  const since = snapshot.window ? `the last ${timeOf(snapshot.window.ms)}` : "all since counting began";
  const ofAll = quantile !== undefined && isRunning(snapshot.mechanism) ? `${quantile}, of ${since}` : quantile;
  const bucket = bucketName(snapshot, chosen, entry().unit);
  byId("item-name").textContent = ofAll ?? bucket ?? (chosen || NOTHING.empty);
  byId("item-name").dir = "auto";
  const texts = quantile !== undefined
    ? { empty: "It cannot be said at any of these ticks.", half: "95 % interval", measured: true, bucketed: true, name: quantile, axis: axisWords(entry()) }
    : { empty: "Not shown at any of these ticks.", half: "± 2 sd", name: bucket };
  drawItem(snapshot, chosen, texts, shown?.items && !shown.change && !shown.edges ? besides(shown) : null, shown?.change ? shown : null);
}

const entry = () => catalogue.histograms.find((one) => one.histogram === view.histogram) ?? {};

// What was chosen, or else what came first when the counts were first seen: it never changes by itself.
function chosenItem(snapshot) {
  const quantiles = snapshot.edges ? (snapshot.quantiles ?? []).map((one) => quantileItem(one.q)) : [];
  const known = view.item !== null && !(snapshot.edges && isQuantile(view.item) && !quantiles.includes(view.item));
  if (known) return view.item;
  const of = JSON.stringify([entry().name, view.key]);
  if (firstSeen.of !== of || firstSeen.item === null) firstSeen = { of, item: quantiles[0] ?? firstOf(snapshot) };
  return firstSeen.item;
}

let firstSeen = { of: null, item: null };

// Of counts that is the first of which the most is known.
function firstOf(snapshot) {
  const least = ([label, value]) => ends(snapshot, label, value)[0];
  return snapshot.items.reduce((best, one) => (best === null || least(one) > least(best) ? one : best), null)?.[0] ?? null;
}

function drawAnswers(snapshot) {
  const numeric = answersOf(snapshot).filter((one) => typeof one.value === "number").map((one) => one.query);
  const chosen = numeric.includes(view.item) ? view.item : (numeric[0] ?? null);
  showAnswers(byId("answers"), snapshot, chosen, (query) => changeView({ item: query }));
  byId("history").hidden = chosen === null;
  if (chosen === null) return;
  byId("item-name").textContent = question(chosen);
  byId("item-name").dir = "ltr";
  drawItem(snapshot, chosen, { empty: "Nothing has been answered at any of these ticks.", half: "± error", name: question(chosen) }, null, null);
}

function drawItem(snapshot, chosen, texts, beside, windowed) {
  item.show(snapshot, chosen, texts, { exact, before: beside, paused: view.at !== null, origin: periods.began(snapshot), windowed });
}

let promised = "";

let boardShown = null;

// What the board shows, as the server has it in files.
function boardAsked() {
  if (!boardShown) return null;
  const { histogram, key, id, end, change } = boardShown;
  return ["api/snapshots", { histogram, key, at: end, id, ...(change ? { window: view.window, since: view.since } : {}) }];
}

for (const box of document.querySelectorAll(".board-files")) linkFiles(box, boardAsked, showLogin);

function drawGuarantee(snapshot) {
  const together = catalogue.together ?? null;
  set(byId("budget"), catalogue.budget?.sentence ?? "");
  const { read, more, rows } = guarantee(snapshot, catalogue.histograms, together, catalogue.budget ?? null);
  const text = JSON.stringify([read, more, rows, together]);
  if (text === promised) return;
  promised = text;
  const list = document.createElement("dl");
  for (const [term, value, explanation] of rows) {
    const dd = document.createElement("dd");
    dd.append(term === "Id" ? element("code", value) : value, " ", element("small", explanation));
    list.append(element("dt", term), dd);
  }
  const paragraphs = (words) => words.map(([kind, sentence]) => element("p", sentence, kind));
  const person = personTable(together);
  // What it says and what it does not are read at once; figures only where they are asked for.
  byId("promise").replaceChildren(...paragraphs(read));
  byId("figures-list").replaceChildren(list, ...paragraphs(more), ...(person ? [person] : []));
  byId("figures").hidden = false;
}

// What a frame and a printed page end with: from when it is, and where all of it is.
function drawFoot(snapshot) {
  const whole = new URL(location.href);
  whole.searchParams.delete("embed");
  whole.searchParams.delete("view");
  whole.hash = "";
  byId("frame-link").href = whole.href;
  set(byId("frame-state"), `${oneLine(view.key ?? "")} · ${shownName()}, ${moment(snapshot.end, now(), true)} (${timeZone()}).`);
}

// While the history is read, how far; the page shows what there is.
const readWords = () => (catalogue.history?.state === "reading" ? `The history is being read: ${Math.floor(100 * (catalogue.history.read ?? 0))} %. ` : "");

// What is looked at, in a title.
function shownName() {
  const { name, window_ms } = entry();
  return window_ms ? `${name}, last ${timeOf(window_ms)}` : view.histogram;
}

function drawState() {
  showTitle(catalogue.worker, shownName(), view.key);
  showStanding({ followed, connected, state, newest: followed?.newest ?? null, now: now() });
}

// ---- the token

function showLogin() {
  const form = byId("login");
  byId("wrong").hidden = form.hidden || !byId("token").value;
  form.hidden = false;
  byId("counts").hidden = true;
  allKeys.follow(null);
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

byId("histogram").addEventListener("change", (event) => chooseHistogram(event.target.value));
byId("key").addEventListener("change", (event) => chooseKey(event.target.value));
byId("find").addEventListener("input", (event) => {
  byId("scroller").scrollTop = 0;
  changeView({ find: event.target.value || null }, true);
});
byId("follow").addEventListener("click", () => {
  // What is held is what the reader sees, also when a newer tick is about to be drawn.
  const at = view.at === null ? (onScreen?.end ?? null) : null;
  pinned = at === null ? null : onScreen;
  missing = null;
  changeView({ at, id: null });
});
byId("beside-span").addEventListener("change", (event) => changeView({ beside: event.target.value || null }));
byId("all-keys-open").addEventListener("click", () => changeView({ all: "keys" }));
byId("all-keys-close").addEventListener("click", () => changeView({ all: null }));
byId("per").addEventListener("change", (event) => changeView({ per: event.target.value || null }));
byId("beside").addEventListener("change", (event) => changeView({ beside: event.target.checked ? "before" : null }));
byId("back").addEventListener("click", () => step(false));
byId("forward").addEventListener("click", () => step(true));
addEventListener("popstate", () => {
  view.read();
  dress();
  settle(true);
});

byId("since-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const since = new Date(byId("since").value);
  if (Number.isNaN(since.getTime())) return;
  byId("since-details").open = false;
  changeView({ since: since.toISOString(), window: null });
});

// In a frame, or on a wall: the same page with less around it.
function dress() {
  const look = view.embed !== null ? "embed" : view.look === "wall" ? "wall" : "";
  document.documentElement.dataset.look = look;
  document.documentElement.dataset.part = view.embed ?? "";
}

dress();

closePopovers();
startTips();
takeToken();
startTheme(byId("theme"), later);
loadCatalogue();
setInterval(loadCatalogue, CATALOGUE_MS);
setInterval(drawState, 1000);
