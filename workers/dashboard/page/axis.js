// Marks of an axis of time, at times that people say.

const [MINUTE, HOUR, DAY] = [60e3, 3600e3, 86400e3];
// Parts of a day; days; months.
const PARTS = [1e3, 5e3, 15e3, 30e3, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR];
const DAYS = [1, 2, 3, 5, 7, 14];
const MONTHS = [1, 2, 3, 6, 12];
const MONTH = 30.4 * DAY;
const second = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const month = new Intl.DateTimeFormat(undefined, { month: "short", year: "numeric" });

// At most `most` marks [{at, text}] between two times; days and their parts begin at the reader's midnight.
export function marks(from, to, most) {
  const fits = (ms) => (to - from) / ms <= most + 0.5;
  const found = [];
  const add = (at, format) => at >= from && at <= to && at > (found.at(-1)?.at ?? -Infinity) && found.push({ at, text: format.format(at) });
  const begin = new Date(from);
  const [year, monthOf, day] = [begin.getFullYear(), begin.getMonth(), begin.getDate()];
  const part = PARTS.find(fits);
  const days = DAYS.find((one) => fits(one * DAY));
  if (part) {
    // By the clock on the wall, which may be moved in between.
    for (let wall = 0, at = 0; at <= to; wall += part) {
      at = new Date(year, monthOf, day, 0, 0, 0, wall).getTime();
      add(at, wall % DAY === 0 ? date : part >= MINUTE ? minute : second);
    }
  } else if (days) {
    const first = day - ((Date.UTC(year, monthOf, day) / DAY) % days);
    for (let n = first, at = 0; at <= to; n += days) add((at = new Date(year, monthOf, n).getTime()), date);
  } else {
    const months = MONTHS.find((one) => fits(one * MONTH)) ?? 12 * Math.ceil((to - from) / most / (12 * MONTH));
    for (let n = monthOf - (monthOf % months), at = 0; at <= to; n += months) add((at = new Date(year, n, 1).getTime()), month);
  }
  return found;
}
