// Time as people say it. Epochs and ticks are how counts are made; a reader asks since when, and until when.

import { isRunning, span, timeOf } from "./words.js";

const DAY_MS = 86400e3;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const dayAndMonth = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
const withYear = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const utcDay = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });
const offset = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" });

export const timeZone = () => {
  const shift = offset.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value.replace("GMT", "UTC") ?? "";
  return zone === "UTC" ? "UTC" : `${zone} (${shift})`;
};

export const isMidnight = (ms) => ms % DAY_MS === 0;
const sameDay = (a, b) => new Date(a).toDateString() === new Date(b).toDateString();

// When the counts of a snapshot began by the grid of ticks: with its epoch, or with its tick. A series that was begun within an epoch
// begins later (periods.js).
export function beginning(snapshot) {
  const width = snapshot.end - snapshot.start;
  return isRunning(snapshot.mechanism) ? snapshot.end - snapshot.tick * width : snapshot.start;
}

// A moment, as short as it can be said at a time.
export function moment(ms, now, exactly = false) {
  const hour = (exactly || ms % 60000 ? seconds : clock).format(ms);
  if (sameDay(ms, now)) return hour;
  if (sameDay(ms, now - DAY_MS)) return `${hour} yesterday`;
  const day = Math.abs(now - ms) < 300 * DAY_MS ? dayAndMonth.format(ms) : withYear.format(ms);
  return `${hour}, ${day}`;
}

// The time of a day that is named beside it.
export const clockOf = (ms) => (ms % 60000 ? seconds : clock).format(ms);

// The day that a UTC midnight begins.
export function dayWords(ms, now) {
  const days = Math.floor(now / DAY_MS) - ms / DAY_MS;
  if (days === 0) return "today";
  return days === 1 ? "yesterday" : utcDay.format(ms);
}

// Since when and until when a snapshot counts; begin: when its series began.
export function periodWords(snapshot, begin, horizon, now) {
  const width = snapshot.end - snapshot.start;
  const whole = begin === beginning(snapshot);
  if (!isRunning(snapshot.mechanism)) return `From ${moment(begin, snapshot.end, true)} to ${moment(snapshot.end, now, true)}`;
  if (horizon && snapshot.tick === horizon && !whole) return `${capital(fromTo(begin, snapshot.end, now))}: counts are final`;
  if (horizon && snapshot.tick === horizon) return `${capital(epochName(begin, begin + horizon * width, now))}, all of it: counts are final`;
  const midnight = isMidnight(begin);
  const local = midnight && zone !== "UTC" ? ` (${clock.format(begin)} here)` : "";
  const since = midnight ? `midnight UTC${local}${dayWords(begin, now) === "today" ? "" : `, ${dayWords(begin, now)}`}` : moment(begin, now);
  return `Since ${since}, until ${moment(snapshot.end, now, true)}`;
}

// Of which time the counts of a window without epochs are; began: when counting did.
export function slidingWords({ window, end }, began, paused, now) {
  const name = timeOf(window.ms);
  const which = paused ? `In the ${name} from` : `In the last ${name}, from`;
  const late = began > window.from ? `; counting began at ${moment(began, now)}` : "";
  return `${which} ${fromTo(window.from, end, now)}${late}`;
}

// From when to when the changes of a window are; since: the time that was asked for, or null.
export function windowWords({ change, start, end }, since, now) {
  const from = moment(change.from, now, change.from % 60000 !== 0);
  const asked = /^\d+$/.test(since) ? Number(since) : Date.parse(since);
  const not = asked < change.from ? ` (not since ${moment(asked, now)})` : "";
  const began = change.tick === 0 ? `, when counts ${change.last ? "" : "last "}began at zero${not}` : "";
  return `Counted since ${from}${began}, until ${moment(end, now, (end - start) % 60000 !== 0)} (${span(end - change.from)})`;
}

// What an epoch from begin to end is called.
export function epochName(begin, end, now) {
  if (isMidnight(begin) && end - begin === DAY_MS) return `${dayWords(begin, now)} (UTC day)`;
  if (isMidnight(begin) && isMidnight(end) && end - begin > DAY_MS) return `${utcDay.format(begin)} to ${utcDay.format(end - 1)} (UTC)`;
  return fromTo(begin, end, now);
}

// Names the day once if both ends are on it.
export function fromTo(begin, end, now, about = false) {
  const from = sameDay(begin, end) ? clockOf(begin) : moment(begin, now);
  return `${from} to ${about ? "about " : ""}${moment(end, now)}`;
}

// Times of which a dashboard has no ticks, [[from, to], ...], in words. each: of what is drawn instead of totals, or null; about: whether
// ticks are left out, so that the first one after a gap may have been earlier; sliding: counts of a window, in which a gap does not stay.
export function gapWords(gaps, now, each, about, sliding) {
  if (!gaps.length) return [];
  const named = gaps.slice(0, 2).map(([from, to]) => `from ${fromTo(from, to, now, about)}`).join(" and ");
  const more = gaps.length > 2 ? `, and ${gaps.length - 2} more times` : "";
  if (each !== null) return [`This dashboard does not know what was counted in each ${each} ${named}${more}; the totals have it.`];
  if (sliding) return [`This dashboard has nothing ${named}${more}; counts after that are of all that came, that time included.`];
  return [`This dashboard has nothing ${named}${more}; what was counted then is in the later totals.`];
}

// Where windows were not full, [[from, to], ...]: counting had begun within them.
export function fillingWords(fills, ms, now) {
  const times = fills.map(([began]) => moment(began, now));
  const when = [times.slice(0, -1).join(", "), times.at(-1)].filter((one) => one).join(" and anew at ");
  return `Where the background is shaded, the ${timeOf(ms)} was not full yet: counting began at ${when}, so the rise is the window filling${times.length > 1 ? ", and the fall before it is no fall of what happened" : ""}.`;
}

export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
