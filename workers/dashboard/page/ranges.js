// The range of time that the chart shows, and the rates that running counts have in it.

import { TIMES, differenceSd } from "./noise.js";
import { isRunning, ofUsers } from "./words.js";

const HOUR_MS = 3600e3;

// name: [title, ms]; null where the length varies: that of the epoch, or of everything that is kept ("all").
export const RANGES = new Map(Object.entries({
  hour: ["Last hour", HOUR_MS],
  epoch: ["Since it began", null],
  day: ["24 hours", 24 * HOUR_MS],
  week: ["7 days", 7 * 24 * HOUR_MS],
  month: ["30 days", 30 * 24 * HOUR_MS],
  year: ["A year", 365 * 24 * HOUR_MS],
  all: ["All", null],
}));
export const CHOSEN = /^(\d{1,16})-(\d{1,16})$/;

// What counts of a window can be divided by: {ms, words}.
const RATES = new Map([["d", [24 * HOUR_MS, "per day"]], ["h", [HOUR_MS, "per hour"]], ["m", [60e3, "per minute"]], ["s", [1e3, "per second"]]]);

// {times, words}: by what counts of a board are multiplied; null where counts are shown, and undefined where they are of no window, or of users: twice the time has not twice the users.
export function rateOf({ change, window, end }, per) {
  const ms = window ? window.ms : change ? end - change.from : null;
  if (ms === null || ofUsers(window)) return undefined;
  const [unit, words] = RATES.get(per) ?? [null];
  return unit === null ? null : { times: unit / ms, words };
}

// A line of a window's counts is of at least so many windows, so that one sees what is usual; of long windows it is of all that is kept,
// which may be less than a year.
const WINDOWS = 7;

// What the address says, or the range of what the board shows: window is whose counts these are without epochs.
export function rangeName(text, { window }) {
  const chosen = RANGES.has(text) || CHOSEN.test(text ?? "") ? text : "epoch";
  if (chosen !== "epoch" || !window) return chosen;
  return [...RANGES].find(([name, [, ms]]) => name !== "year" && ms >= WINDOWS * window.ms)?.[0] ?? "all";
}

// {from, to, live} in ms around a snapshot; from: null for all that is kept. Ticks with from < end <= to are shown.
export function bounds(name, snapshot, origin, paused) {
  const chosen = CHOSEN.exec(name);
  if (chosen) return { from: Number(chosen[1]), to: Number(chosen[2]) };
  const to = paused ? snapshot.end : null;
  if (name === "all") return { from: null, to };
  if (name === "epoch") return { from: epochStart(snapshot, origin), to };
  return { from: snapshot.end - RANGES.get(name)[1], to };
}

// Counts of one tick alone have no beginning to go back to: an hour is shown.
function epochStart(snapshot, origin) {
  return isRunning(snapshot.mechanism) ? origin : Math.min(snapshot.start, snapshot.end - HOUR_MS);
}

// What was counted between two points of running counts, with two standard deviations; null where that cannot be said.
// older: null where the counts began at zero.
export function increase(newer, older) {
  if (newer.value === null || newer.sd === null) return null;
  if (older === null) return { value: newer.value, half: TIMES * newer.sd };
  if (older.value === null || older.id !== newer.id) return null;
  return { value: newer.value - older.value, half: TIMES * differenceSd(newer, older) };
}

// Rates: for each interval between consecutive points what was counted in it. finals: the last points of the epochs, so that what came
// between the last step and the end of an epoch is not lost; that of the running one, which is not final, ends no interval. step: the
// width of an interval; origin: {id, at}, when the series that is shown began. gaps: from when to when intervals were left out.
export function rates(points, finals, step, origin) {
  const found = Object.assign([], { gaps: [] });
  if (!points.length) return found;
  const [first, last] = [points[0].end, points.at(-1).end];
  const all = new Map([...points, ...finals.filter((one) => one.final && one.end > first && one.end < last)].map((one) => [`${one.id} ${one.end}`, one]));
  let before = null;
  for (const newer of [...all.values()].sort((a, b) => a.end - b.end)) {
    const grid = newer.id === origin.id ? origin.at : newer.end - newer.tick * (newer.end - newer.start);
    const older = before?.id === newer.id ? before : null;
    // A series that follows another within an epoch began after it.
    const began = Math.max(grid, before?.end ?? grid);
    before = newer;
    // The first one that is known of an epoch counts from its beginning, which may be long before; and over a gap more than in one
    // interval was counted.
    if (newer.end - (older?.end ?? began) > 1.5 * step) {
      if (older !== null) found.gaps.push([older.end, newer.end]);
      continue;
    }
    const by = increase(newer, older);
    found.push({ ...newer, from: older?.end ?? began, value: by?.value ?? null, half: by?.half ?? null, threshold: null, ...known(newer, older) });
  }
  return found;
}

// What was counted in the window of so many ms before each point, or since a point of time, {ms} or {since}: the counts there less those
// where it began. origin: {id, at}, when the series that is shown began.
export function counted(points, { ms, since }, origin) {
  const at = new Map(points.map((one) => [`${one.id} ${one.end}`, one]));
  return points.map((newer) => {
    const from = since ?? newer.end - ms;
    const began = newer.id === origin.id ? origin.at : newer.end - newer.tick * (newer.end - newer.start);
    const older = from <= began ? null : at.get(`${newer.id} ${from}`);
    // Of a window that reaches into the epoch before, the board alone knows.
    const by = older === undefined || (from < began && since === undefined) ? null : increase(newer, older);
    return { ...newer, value: by?.value ?? null, half: by?.half ?? null, threshold: null, ...known(newer, older) };
  });
}

// Whether an item is shown at the end of an interval, and its count where it was not at the beginning.
const known = (newer, older) => ({ shown: newer.value !== null, total: older?.value === null ? newer.value : null });
