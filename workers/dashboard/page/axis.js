// Marks of an axis of time, at times that people say.

const [MINUTE, HOUR, DAY] = [60e3, 3600e3, 86400e3];
const STEPS = [1e3, 5e3, 15e3, 30e3, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 91 * DAY, 182 * DAY, 365 * DAY];
const second = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const month = new Intl.DateTimeFormat(undefined, { month: "short", year: "numeric" });

// [{at, text}] from a time to another, at most so many.
export function marks(from, to, most) {
  const step = STEPS.find((one) => (to - from) / one <= most + 0.5) ?? STEPS.at(-1);
  // Days and parts of them begin at midnight where the reader is.
  const off = -new Date(to).getTimezoneOffset() * MINUTE;
  const found = [];
  for (let at = Math.ceil((from + off) / step) * step - off; at <= to; at += step) found.push({ at, text: text(at, step, off) });
  return found;
}

function text(at, step, off) {
  if (step >= 91 * DAY) return month.format(at);
  if (step >= DAY || (at + off) % DAY === 0) return date.format(at);
  return (step >= MINUTE ? minute : second).format(at);
}
