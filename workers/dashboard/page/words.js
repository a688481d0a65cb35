// What things are called and how numbers are written. What a promise is worth, in words, is in promise.js; all else is here.

import { MECHANISMS } from "./mechanisms.js";
import { grade, isSound, measures, upTo, verdict } from "./promise.js";

const RUNNING = "Running counts since this epoch began, at the end of each tick.";
const SLIDING = (name) => `Counts of the last ${name}, at the end of each tick: what is older has left them.`;
const USERS = (name) => `How many different users each item had in the last ${name}, at the end of each tick. Somebody who came often counts once.`;
const IN_WINDOW = "What was counted in a window of time: the counts at its end less those at its beginning.";
const NAMED = (names) => `Of the last ${names} the error is published, and smaller; of any other time it is an upper bound.`;
const OF_TICK = "Counts of this one tick alone.";
const ONCE = (n) => `Below ${n} nothing new is shown. Once shown, an item stays until the epoch ends.`;
const PASSES = (n, several, longest) => `An item is shown${several ? " in all windows" : ""} once its count${several ? " in one of them" : ""} passes a limit, here ${n}. It leaves the board when nothing of it is left in the last ${longest}.`;
const EACH = (n) => `Below ${n} nothing is shown.`;
const BLOCK = (n) => `Counts are sums over blocks of ticks; in each block nothing below ${n} is shown.`;
const BAR = (n) => `Shown is what lies clearly above the rest: by more than about ${n}.`;

// What each mechanism declares of itself: family, text_on_dashboard, threshold_rule, subtracts, whole_domain.
const DECLARED = new Map(Object.entries(MECHANISMS));
const COUNTS = { running: RUNNING, tick: OF_TICK };
const RULES = { once: ONCE, each: EACH, block: BLOCK, bar: BAR };
const ruleOf = (mechanism) => DECLARED.get(mechanism)?.threshold_rule ?? null;

// Whether the counts of a window are of different users.
export const ofUsers = (window) => window?.counts === "users";

// edges: those of a histogram of numbers, or null; windowed: what was counted in a window is shown.
export function about({ mechanism, windows, window }, edges, windowed) {
  const is = DECLARED.get(mechanism) ?? { text_on_dashboard: "Counts with noise." };
  const counts = window ? (ofUsers(window) ? USERS : SLIDING)(timeOf(window.ms)) : (COUNTS[is.family] ?? is.text_on_dashboard);
  const which = is.family in COUNTS ? is.text_on_dashboard : "";
  const what = windowed ? [IN_WINDOW, windows?.length ? NAMED(windows.map(({ ms }) => timeOf(ms)).join(" or ")) : ""].join(" ").trim() : counts;
  if (edges === null) return `${what} ${which}`.trim();
  const widths = edges.slice(1).map((one, i) => one - edges[i]);
  const uneven = Math.max(...widths) > 1.01 * Math.min(...widths);
  return [what, BUCKETS.all, uneven ? BUCKETS.uneven : "", is.whole_domain || !which ? "" : BUCKETS.some].join(" ").trim();
}

export const BUCKETS = {
  all: "Numbers are counted in buckets whose edges were declared beforehand.",
  uneven: "Buckets are drawn equally wide, whatever their edges.",
  some: "Only some buckets are shown.",
  hidden: "not shown",
};

const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

// An edge of a bucket, or another number that is exact.
export function edge(value) {
  const size = Math.abs(value);
  const text = value !== 0 && (size >= 1e9 || size < 1e-4) ? value.toExponential().replace("e+", "e") : new Intl.NumberFormat("en", { maximumFractionDigits: 9 }).format(value);
  return text.replaceAll("-", "−");
}

// The bucket at a place, from 0: open-ended ones first and last.
export function bucketWords(index, edges) {
  if (index === 0) return `below ${edge(edges[0])}`;
  if (index === edges.length) return `${edge(edges.at(-1))} and above`;
  return `from ${edge(edges[index - 1])} to ${edge(edges[index])}`;
}

// What a chart writes where its values are numbers that were counted.
export const measured = (value) => digits.format(value).replace("-", "−");

// A number and its interval, with as many decimals as the interval justifies; an open end is null.
export function spread(value, low, high) {
  const width = low !== null && high !== null && high > low ? high - low : null;
  const places = width === null ? null : Math.min(20, Math.max(0, 1 - Math.floor(Math.log10(width))));
  const format = places === null ? digits : new Intl.NumberFormat("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  const written = (number) => format.format(number).replace("-", "−");
  const interval = low === null ? (high === null ? "anywhere" : `at most ${written(high)}`) : high === null ? `at least ${written(low)}` : `${written(low)} to ${written(high)}`;
  return { value: value === null ? null : written(value), interval };
}

// What a quantile is called, and on a picture.
export function quantileName(q) {
  const share = `${Math.round(q * 1e6) / 1e4} %`;
  return q === 0.5 ? { name: "Median", mark: "median" } : { name: `${share} lie below`, mark: share };
}

// A quantile of a snapshot: {name, mark, value, interval}. What it lies between comes first, at 95 %: its bucket if that is certain (nothing
// is known of where in it numbers lie), else the edges that its interval reaches to (docs/settings.md, "What it does not cover").
export function quantileWords(quantile, edges, unit) {
  const { q, bucket, value } = quantile;
  if (bucket === null) return { ...quantileName(q), value: "cannot be said", interval: "all counts together may be noise" };
  const [low, high] = bucketsOf(quantile, edges);
  const own = bucket[0] === "[" ? bucket.slice(1, -1).split(",").map(Number) : null;
  const where = low === null ? (high === null ? "anywhere" : `below ${edge(high)}`) : high === null ? `${edge(low)} or more` : `between ${edge(low)} and ${edge(high)}`;
  const open = bucket[0] === "<" ? `below ${edge(edges[0])}` : `${edge(edges.at(-1))} or more`;
  const likely = value !== null ? `about ${spread(value, ...own).value}` : open === where ? "" : `most likely ${open}`;
  return { ...quantileName(q), value: withUnit(where, unit), interval: likely };
}

// The edges between which the true quantile is, [low, high], an open end null: those of the buckets in which its interval ends.
export function bucketsOf({ low, high }, edges) {
  const below = low === null ? [] : edges.filter((one) => one <= low);
  const above = high === null ? undefined : edges.find((one) => one >= high);
  return [below.at(-1) ?? null, above ?? null];
}

// windows: the lengths of all windows of a histogram without epochs, shortest first.
export function threshold(snapshot, windows) {
  if (snapshot.threshold === null || !snapshot.items) return null;
  if (snapshot.window) return PASSES(count(Math.ceil(snapshot.threshold)), windows.length > 1, timeOf(windows.at(-1)));
  const say = RULES[ruleOf(snapshot.mechanism)] ?? EACH;
  return say(count(Math.ceil(snapshot.threshold)));
}

// Why an item is shown whose count is below the limit; "" where that does not occur.
export function belowWords({ threshold, mechanism, window }, windows) {
  if (threshold === null || !thresholdStays(mechanism)) return "";
  const stays = window ? `as long as anything of it is left in the last ${timeOf(windows.at(-1))}` : "until the epoch ends";
  return `† Below the limit of ${count(Math.ceil(threshold))} now. It is shown because it passed the limit earlier${windows.length > 1 ? " or in another window" : ""}; it stays ${stays}.`;
}

// What an error bar says: two standard deviations of the noise, and whether counts are off for another reason too.
// Over an unknown domain an item is shown when its noise was high; below the bar lies, at any of T ticks, a true count that is
// sqrt(2 ln(40 T)) sd less, 1 time in 40 (docs/guarantee.md, "Error bars"). ticks: of the epoch, or null where it has no end.
export function errorBar({ mechanism, sd, tick }, ticks) {
  if (ruleOf(mechanism) === "block") return "error bar: noise is hardly ever larger; counts may also be too low, small ones above all";
  const usual = "error bar: the true count lies in it about 19 times out of 20";
  const rule = ruleOf(mechanism);
  if (rule === null || sd === null) return usual;
  if (rule !== "once") return `${usual}; less often near the threshold, as items are shown when their noise was high`;
  const below = Math.ceil(Math.sqrt(2 * Math.log(40 * (ticks ?? tick))) * sd);
  return `${usual}; less often for a new item, as it is shown when its noise was high: allow for ${count(below)} less`;
}

// The same where what was counted in a window is shown.
export function windowBar({ exact, threshold }) {
  const usual = exact ? "the true number lies in it about 19 times out of 20" : "the true number lies in it 19 times out of 20 or more: for this window the error is known as an upper bound only";
  return `error bar: ${usual}; a number below 0 is noise; of one that is newly shown it also covers what may have been counted before${threshold === null ? "" : `, up to ${count(threshold)}`}`;
}

// The same of the band about a line, in short.
export function band({ mechanism }) {
  if (ruleOf(mechanism) === "block") return "noise is hardly ever larger than the band; counts may also be too low";
  const rule = ruleOf(mechanism);
  const seldom = rule === null ? "" : rule === "once" ? ", less often while it is new" : ", less often near the threshold";
  return `the true count lies in the band about 19 times out of 20${seldom}`;
}

// Whether the threshold is a count, so that it can be drawn among the bars.
export function thresholdIsCount(mechanism) {
  return ["once", "each"].includes(ruleOf(mechanism));
}

// Whether what is shown once stays until the epoch ends: then whatever is shown for the first time is new, beyond all noise.
export const thresholdStays = (mechanism) => ruleOf(mechanism) === "once";

// The ranks that an item may have without noise: [first, last], the last one null if unknown.
export const placesWords = ([first, last]) => (last === null ? `${first}+` : first === last ? `${first}` : `${first}–${last}`);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

export const count = (value) => whole.format(value).replace("-", "−");

export function about2sd(sd) {
  const twice = 2 * sd;
  return twice >= 10 ? count(twice) : `${Math.round(twice * 10) / 10}`;
}

// On an axis, as everywhere else; only where that is too long for its margin, in the unit of the largest beside it.
export function short(value, most = value) {
  const size = Math.abs(most);
  const [by, unit] = size >= 1e9 ? [1e9, " bn"] : size >= 1e7 ? [1e6, " m"] : [1, ""];
  return value === 0 ? "0" : `${digits.format(value / by)}${unit}`.replace("-", "−");
}

// What the numbers of a histogram are called, and their unit: {label, unit} of the catalogue.
export const axisWords = ({ label, unit }) => (label && unit ? `${label} (${unit})` : label || unit || "");
export const withUnit = (text, unit) => (unit ? `${text} ${unit}` : text);

export function time(ms) {
  const date = new Date(ms);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

// A length of time beside others, all in hours.
export const hours = (ms) => `${Math.round(ms / 360e3) / 10} h`;

export function span(ms) {
  const units = [[86400e3, "day"], [3600e3, "hour"], [60e3, "minute"], [1e3, "second"]];
  for (const [size, name] of units) {
    if (ms !== size && ms < size * (name === "second" ? 0 : 2)) continue;
    const number = ms / size >= 10 ? Math.round(ms / size) : Math.round((ms / size) * 10) / 10;
    return `${number} ${name}${number === 1 ? "" : "s"}`;
  }
  return "";
}

// A label in one line: control characters and an invisible label are made visible; everything else stays.
export function oneLine(label) {
  const line = label.replace(/[\u0000-\u001f\u007f]/g, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))));
  if (!line || SEEN.test(line)) return line;
  return [...line].slice(0, 8).map((c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(" ");
}

// Anything but blanks, marks and characters without a shape.
const SEEN = /[^\s\p{C}\p{Z}\p{M}\u115f\u1160\u2800\u3164\uffa0]/u;


function inAll({ unit, histograms, epsilon, delta }) {
  const who = unit === "user" ? "user" : "event";
  const said = grade(epsilon, delta) === "none" ? "delta adds up to 1 or more: in all, nothing is promised" : `it costs ε = ${upTo(epsilon)}, δ = ${upTo(delta)} in all`;
  const inEpochs = unit === "user" ? ", in one epoch of each" : "";
  return `There are ${histograms.length} histograms here. Where the same ${who} counts in all of them${inEpochs}, ${said}${worth({ epsilon, delta })}.`;
}

// What earlier generations of a histogram promised, which the newest snapshots do not say, if it was less.
function weaker({ epsilon, delta }, name, { unit, histograms }) {
  const earlier = ended(histograms).filter((one) => one.histogram === name && (one.epsilon > epsilon || one.delta > delta));
  return earlier.length
    ? [`Earlier generations of ${oneLine(name)} promised less, down to ε = ${upTo(Math.max(...earlier.map((one) => one.epsilon)))}, δ = ${upTo(Math.max(...earlier.map((one) => one.delta)))}: that is all that ${unit === "user" ? "the users" : "the events"} counted in them have, for ever.`]
    : [];
}

// What all that was ever published costs, where generations have ended.
function ever({ unit, histograms, total }) {
  if (!ended(histograms).length) return [];
  const who = unit === "user" ? "user" : "event";
  if (total === null) return ["What all that was ever published costs cannot be stated, as it once protected something else."];
  const cost = grade(total.epsilon, total.delta) === "none" ? "nothing is promised" : `it costs at most ε = ${upTo(total.epsilon)}, δ = ${upTo(total.delta)}`;
  return [`Where one ${who} counts in all that this worker ever published, earlier generations included, ${cost}${worth(total)}.`];
}

const ended = (histograms) => histograms.filter((one) => one.status !== "running");
const worth = ({ epsilon, delta }) => ({ weak: ", a weak promise", void: ", next to no promise" })[grade(epsilon, delta)] ?? "";

// What the noise is for, in the line below the title.
export function purpose({ unit, epsilon, delta }) {
  const one = unit === "user" ? "a single user" : "a single event";
  if (isSound(epsilon, delta)) return `Noise is added to every number on purpose: it limits what can be learned about ${one}.`;
  return `Noise is added to every number on purpose, but too little to protect ${one} well.`;
}

// What of a unit is protected; neighbours: of the settings, whether records themselves are hidden.
function hidden(unit, neighbours) {
  if (neighbours === "record") return unit === "user" ? "that they came, and what is in their events" : "that it came, and what is in it";
  return unit === "user" ? "what is in their events; not how many, or when" : "what is in it; not when it came";
}

// The guarantee as [kind, text] paragraphs, those that are `read` at once and others (`more`), and [term, value, explanation] rows; together
// is what all histograms promise, budget what the worker said of it, if anything.
export function guarantee(snapshot, catalogue, together = null, budget = null) {
  const { unit, rho, epsilon, delta, period, overlap } = snapshot.guarantee;
  const whether = unit === "user" ? "any one user's events were counted" : "any one event was counted";
  const entry = catalogue.find((h) => h.histogram === snapshot.histogram);
  const sliding = Boolean(snapshot.window);
  const ticks = entry?.horizon;
  const width = snapshot.end - snapshot.start;
  const epoch = sliding ? "ever" : ticks ? `the whole epoch (${count(ticks)} ticks, ${span(ticks * width)})` : "the whole epoch";
  const weak = isSound(epsilon, delta) ? "" : " weak";
  const read = [
    [`promise${weak}`, `Anyone who sees all of this for ${epoch}, keeps it, and even knows everything about all the others, ${verdict(epsilon, delta, whether)}`],
  ];
  const table = together === null ? "" : "; the table says how much";
  read.push(["note", unit === "user"
    ? `The promise is about all that one user did in ${period ? `one period of ${span(period)}` : "this epoch"}. Somebody with several user ids, or who comes in several ${period ? "periods" : "epochs"}, is promised less${table}.`
    : `The promise is about one event, not one person. Somebody with several events is promised less${table}.`]);
  if (budget !== null) read.push(...weaker(snapshot.guarantee, entry?.name ?? snapshot.histogram, budget).map((sentence) => ["note", sentence]));
  const more = measures(epsilon, delta).map((sentence) => ["", sentence]);
  if (period) more.push(["note", `It is for all windows together, for ever. Periods add up: n of them cost up to ${upTo(overlap)} n times the rho of one.`]);
  else if (sliding) more.push(["note", "It is charged once and for ever, for all windows together: there are no epochs that add up."]);
  // A sum that is a weak promise is read at once.
  if (together !== null && together.histograms.length > 1) (worth(together) === "" ? more : read).push(["note", inAll(together)]);
  if (budget !== null) more.push(...ever(budget).map((sentence) => ["note", sentence]));
  const rows = [
    ["ε (epsilon)", upTo(epsilon), "the smaller, the more private"],
    ["δ (delta)", upTo(delta), delta < 1 ? "chance that the promise fails" : "nothing is promised"],
    ["ρ (rho, zCDP)", upTo(rho), "what ε and δ come from"],
    ["Unit", unit === "user" ? "one user" : `one ${unit}`, hidden(unit, budget?.neighbours)],
    ["Mechanism", snapshot.mechanism, ""],
    ["Id", snapshot.id, `of histogram, parameters and ${sliding ? "window" : "epoch"}`],
    ...(budget === null ? [] : [["Settings", budget.fingerprint, "fingerprint of what the worker runs with; a signed page names its own"]]),
    sliding ? ["Tick", count(snapshot.tick), `a tick is ${span(width)}`] : ["Epoch, tick", `${count(snapshot.epoch)}, ${count(snapshot.tick)}`, ticks ? `of ${count(ticks)}; a tick is ${span(width)}` : `a tick is ${span(width)}`],
  ];
  return { read, more, rows };
}

export const KAFKA = {
  connecting: "Kafka has not answered yet.",
  missing: "Some topics are not there yet, or may not be read: ",
  reading: "The last ticks are being read.",
  away: "Kafka does not answer. What is shown is what was last read.",
  refused: "Kafka does not let this dashboard in, or not at all its topics. What is shown is what was last read.",
};

// What "newly shown" means; window: of which window, if its counts are not since an epoch began.
export const newlyWords = (window) => (window ? `not on the board ${earlierBy(window.ms)}; may have been counted then` : "not shown before this time; may have been counted before");

export const NOTHING = {
  asking: "Asking for the last ticks ...",
  none: "Nothing has been published for this yet. It appears as soon as the first tick has ended.",
  found: "No item here has this in its name.",
  fresh: "not known, as it was not shown when the window began",
  mean: "the count may be noise",
  sum: "noise alone may make such a sum",
  counted: "Nothing can be said of an interval here: the item must be shown at both of its ends.",
  empty: "(no name)",
  others: "others: unknown, as what is newly shown may have been counted before",
};

// How much may have been counted of an item that is not shown. window: of which window, if it has no epochs: there an item that leaves the
// board is not looked at for a while.
export const hiddenWords = (most, window) => (most === null ? "" : `at most about ${count(Math.ceil(most))} were counted${window ? ", or more if it had been on the board and left it: then it is not looked at for a while" : ""}`);

// Why a snapshot shows no item; began: when the epoch did, or null for counts of one tick.
export function nothingShown(snapshot, began) {
  const limit = snapshot.threshold !== null && thresholdIsCount(snapshot.mechanism) ? count(Math.ceil(snapshot.threshold)) : null;
  const words = [limit === null ? "No item stands out from the noise, so nothing is shown." : `No item has passed the threshold of ${limit} yet, so nothing is shown. That too is part of the protection.`];
  if (began !== null) words.push(`Counting began ${span(snapshot.end - began) || "just"} before this tick ended.`);
  return words.join(" ");
}

// Whether a mechanism's counts differ from the truth by noise alone.
export const subtracts = (mechanism) => DECLARED.get(mechanism)?.subtracts ?? false;

// Whether a mechanism counts from the beginning of an epoch, and not each tick alone.
export const isRunning = (mechanism) => DECLARED.get(mechanism)?.family !== "tick";

// The end of "in the last ...".
export const timeOf = (ms) => UNITS.get(ms) ?? span(ms);

// One window earlier.
export const earlierBy = (ms) => `${UNITS.has(ms) ? "one " : ""}${timeOf(ms)} earlier`;

const UNITS = new Map([[1e3, "second"], [60e3, "minute"], [3600e3, "hour"], [86400e3, "day"]]);

// A length of time as addresses and settings have it.
export function duration(ms) {
  const [size, unit] = [[86400e3, "d"], [3600e3, "h"], [60e3, "m"], [1e3, "s"], [1, "ms"]].find(([one]) => ms % one === 0);
  return `${ms / size}${unit}`;
}

// What was counted of an item since a time, in words: {text, kind}. low, high: the ends of its error bar; isNew: it
// was not shown then; sure: it is beyond what noise makes of any row of the board.
export function changeWords(when, { value, low, high, isNew, sure }) {
  const kind = sure ? "sure" : "none";
  if (isNew) return { text: `Counted ${when}: ${between(low, high)}, as it is newly shown`, kind };
  if (low <= 0) return { text: `Counted ${when}: may be none${high > 0 ? `, at most ${count(high)}` : ""}`, kind };
  return { text: `Counted ${when}: ${count(value)} ± ${count(high - value)}`, kind };
}

export const between = (low, high, rate = null) => `between ${rated(Math.max(0, low), high - low, rate)[0]} and ${rated(high, high - low, rate)[0]}`;

// A count and its error as they are written: as a rate to two digits of the error.
export function rated(value, off, rate) {
  return rate === null ? [count(value), about2sd(off / 2)] : rounded(value * rate.times, off * rate.times);
}

// What may be none: no more than this is said of it.
export const atMost = (high, rate = null) => `at most ${rate === null ? count(Math.max(0, Math.ceil(high))) : rounded(0, Math.max(0, high) * rate.times)[1]}`;

// A number with an error, to two digits of the error: [value, error].
export function rounded(value, off) {
  const unit = off > 0 ? 10 ** (Math.floor(Math.log10(off)) - 1) : 1;
  if (unit < 1) return [value, off].map((one) => spread(one, 0, off).value);
  return [Math.round(value / unit) * unit, Math.ceil(off / unit) * unit].map(count);
}

// A row of `sums`, {sum, mean and interval}, as a board writes it. What noise alone may make, as a sum of 0 would have it, is not written
// as if it were known: only between which ends it is. why: why something is not said; unsure: it is so.
export function sumWords([total, mean, low, high], sum) {
  const { value, interval } = spread(mean, low, high);
  const off = 2 * sum.sd;
  if (total === null) return { total: "–", off: "", mean: "–", interval, why: NOTHING.fresh, unsure: true };
  if (Math.abs(total) <= off || mean === null) return { total: sumRange(total - off, total + off, sum), off: "", mean: interval, interval: "", why: mean === null ? NOTHING.mean : NOTHING.sum, unsure: true };
  const [sumValue, sumOff] = rounded(total, off);
  return { total: sumValue, off: `± ${sumOff}`, mean: value, interval, why: "", unsure: false };
}

// Between which numbers a sum is, of which the sign is not known; that of numbers that are never below 0 is not, either.
function sumRange(low, high, { from, to }) {
  const [least, most] = [from >= 0 ? Math.max(0, low) : low, to <= 0 ? Math.min(0, high) : high];
  const [, written] = rounded(0, Math.max(Math.abs(least), Math.abs(most)));
  if (least === 0) return `at most ${written}`;
  if (most === 0) return `at least −${written}`;
  return `${rounded(least, most - least)[0]} to ${rounded(most, most - least)[0]}`;
}

// An item's sum and mean; empty where no sum is published.
export function meanWords({ items, sums, sum, change, window }, item, name) {
  const at = sums ? items.findIndex(([label]) => label === item) : -1;
  if (at < 0) return "";
  const { total, off, mean, interval, why, unsure } = sumWords(sums[at], sum);
  const where = change || window ? " in the window" : "";
  const cut = `numbers are cut to ${measured(sum.from)} to ${measured(sum.to)}`;
  if (sums[at][0] === null) return `Sum and mean of ${name}${where}: ${why}.`;
  if (unsure) return `Sum of ${name}${where}: ${total}; mean: ${mean} (${why}); ${cut}.`;
  return `Sum of ${name}${where} ${total} ${off}, mean ${mean} (95\u00a0%: ${interval}); ${cut}.`;
}

// What the columns of mean and sum are of.
export function sumLegend({ sum: { from, to }, change, mechanism }, field) {
  const often = change && !change.exact ? "19 times out of 20 or more" : "about 19 times out of 20";
  const seldom = !change && thresholdStays(mechanism) ? ", less often while an item is new" : "";
  return `Mean and sum of ${field}, cut to ${measured(from)} to ${measured(to)}. The true mean lies in the interval beside it ${often}${seldom}, and the sum within its ±. Where only a range is said, noise alone may make the sum; –: not known.`;
}

// A share of the total: {part, half}, with as many places as its error lets stand; at most all of it.
export function shareWords({ part, half }, whole) {
  const places = placesOf(half);
  if (part <= half) return `at most ${percent(Math.min(1, part + half), places)} of ${whole}`;
  return `${percent(part, places)} ± ${percent(half, places)} of ${whole}`;
}

// The share of what is not listed: where only its ends are known, these.
export function restShare({ least, value, share }) {
  if (!share) return "";
  const [low, high] = share.ends;
  if (least === value || low === 0) return shareWords({ part: low === 0 ? 0 : share.part, half: low === 0 ? high : share.half }, "everything");
  const places = placesOf(high - low);
  return `${percent(low, places)} to ${percent(high, places)} of everything`;
}

const placesOf = (half) => Math.min(4, Math.max(0, 1 - Math.floor(Math.log10(100 * half))));
const percent = (part, places) => `${(100 * part).toFixed(places).replace("-", "−")}\u00a0%`;

// What the numbers of a sum are called: by the settings, else by the last name of their path.
export const fieldName = (entry) => axisWords(entry) || (fieldWords(entry.sum_field) ?? "numbers");

// A field of events, as the settings name it, in words: the last name of its path; null where there is none.
export const fieldWords = (path) => (path ? path.split(".").at(-1).replaceAll("[]", "").replaceAll("_", " ") : null);

// What comes first on a board, and how sure that is. rows: in the order of what is known, with their places (noise.js).
export function summaryWords(rows, sd, rate = null, users = false) {
  const [first] = rows;
  const name = ({ label }) => oneLine(label) || NOTHING.empty;
  if (!first) return "";
  if (sd === null || first.places === null) return `Most: ${name(first)}, ${count(first.value)}.`;
  const number = first.least === first.value ? rated(first.value, 2 * sd, rate).join(" ± ") : between(first.from, first.to, rate);
  if (first.from <= 0) return "";
  const rivals = rows.filter((row) => row !== first && row.places[0] === 1);
  const what = rate !== null ? ` ${rate.words}` : users ? " different users" : "";
  const most = `Most: ${name(first)}, ${number}${what} (19 times out of 20)`;
  if (!rivals.length && first.places[1] === 1) return `${most}, ahead of all others beyond the noise.`;
  const named = rivals.slice(0, 2).map(name).join(" or ");
  const more = rivals.length > 2 ? ` or ${rivals.length - 2} more` : "";
  return `${most}; but noise hides whether ${named || "another"}${more} had more.`;
}
