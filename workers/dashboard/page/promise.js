// What (epsilon, delta) promises, in words that are true for every value of both. The limits and sentences are those of
// workers/privacy/phrasing.py, to the letter; figures are rounded so that no more is promised than holds.

const LIMITS = { warned: 5, void: 20, deltaWarned: 1e-5, deltaVoid: 0.01 };
// What an observer can do, by the largest epsilon for which the words hold.
const WORDS = [
  [0.2, "can guess only slightly better than by a coin toss"],
  [1, "can guess better than by a coin toss, but not reliably,"],
  [3, "can guess right most of the time"],
  [LIMITS.warned, "can be nearly sure"],
  [LIMITS.void, "can be practically sure"],
  [Infinity, "can be sure"],
];
const LARGE = [[1e15, "quadrillion"], [1e12, "trillion"], [1e9, "billion"], [1e6, "million"]];
const SLACK = 1e-9;
const NAMED_BELOW = Math.log(1e18);

// "sound", "weak", "void" or "none". epsilon is null where there is none.
export function grade(epsilon, delta) {
  if (epsilon === null || !(delta < 1) || !Number.isFinite(epsilon)) return "none";
  if (epsilon > LIMITS.void || delta >= LIMITS.deltaVoid) return "void";
  if (epsilon > LIMITS.warned || delta > LIMITS.deltaWarned) return "weak";
  return "sound";
}

// Whether a promise is strong enough to be described in words beside its figures.
export const isSound = (epsilon, delta) => grade(epsilon, delta) === "sound";

// What somebody who sees everything can tell: the end of a sentence about them.
export function verdict(epsilon, delta, whether) {
  if (grade(epsilon, delta) === "none") return `may learn whether ${whether}: nothing is promised, as delta is 1 or more.`;
  const [, learned] = WORDS.find(([most]) => epsilon <= most);
  const right = odds(epsilon, delta);
  if (delta <= LIMITS.deltaWarned) return `${learned} whether ${whether}: at even odds, ${right}${weakness(epsilon)}.`;
  const large = delta >= LIMITS.deltaVoid ? "next to nothing is promised" : "the promise is weak";
  return `may, with a chance of up to ${oneIn(delta)}, see for certain whether ${whether}: ${large}, as delta is above 0.00001. Otherwise they ${learned.replace(/,$/, "")}${weakness(epsilon)}. At even odds, they are ${right}.`;
}

function odds(epsilon, delta) {
  const right = timesRight(epsilon, delta);
  return right === null ? "right nearly every time instead of 50 times in 100" : `right at most ${right} times in 100 instead of 50`;
}

function weakness(epsilon) {
  if (epsilon <= LIMITS.warned) return "";
  if (epsilon <= LIMITS.void) return "; the promise is weak, as epsilon is above 5";
  return "; next to nothing is promised, as epsilon is above 20";
}

// What epsilon and delta bound: a sentence, or none.
export function measures(epsilon, delta) {
  if (grade(epsilon, delta) === "none") return [];
  return [`Whatever they see is at most ${factor(epsilon)} times as likely in one case as in the other, but for a chance of ${oneIn(delta)}.`];
}

// e^epsilon, rounded up.
export function factor(epsilon) {
  const excess = Math.expm1(Math.min(epsilon, NAMED_BELOW));
  if (excess < 0.1) return `1${plain(...digitsOf(excess, 2, "up")).slice(1)}`;
  return epsilon < NAMED_BELOW ? large(excess + 1, "up") : `10^${Math.ceil(epsilon / Math.log(10))}`;
}

// A chance, rounded up: "1 in a billion", "50 in 100".
export function oneIn(delta) {
  if (delta > 0.05) return `${Math.ceil(100 * delta * (1 - SLACK))} in 100`;
  const times = (1 / delta) * (1 + SLACK);
  return `1 in ${times >= 1e18 ? `10^${Math.floor(Math.log10(times))}` : large(times, "down")}`;
}

// How often in 100 a guess is right at most; null where that is nearly always.
export function timesRight(epsilon, delta) {
  const wrong = (100 * (1 - delta)) / (1 + Math.exp(Math.min(epsilon, 700)));
  const places = wrong >= 1 ? 1 : 2;
  const units = 10 ** places;
  const left = 100 * units - Math.floor(wrong * units * (1 - SLACK));
  return left === 100 * units ? null : trimmed(`${Math.floor(left / units)}.${`${left % units}`.padStart(places, "0")}`);
}

// A number above 0, rounded up to `count` significant digits.
export function upTo(value, count = 3) {
  const [digits, exponent] = digitsOf(value, count, "up");
  const rounded = Number(`${digits}e${exponent}`);
  return (rounded && rounded < 1e-4 ? rounded.toExponential() : `${rounded}`).replace("e-", "e−");
}

function large(value, way) {
  const [digits, exponent] = digitsOf(value, 3, way);
  const rounded = digits * 10 ** exponent;
  for (const [size, name] of LARGE) {
    if (rounded < size * 0.9999) continue;
    const text = plain(...digitsOf(rounded / size, 3, null));
    return `${text === "1" ? "a" : text} ${name}`;
  }
  return plain(digits, exponent);
}

// A number above 0 as [digits, exponent of ten], rounded "up", "down", or to the nearest.
function digitsOf(value, count, way) {
  const [mantissa, power] = value.toExponential(count - 1).split("e");
  let digits = Number(mantissa.replace(".", ""));
  const exponent = Number(power) - count + 1;
  const written = Number(`${digits}e${exponent}`);
  if (way === "up" && written < value) digits += 1;
  if (way === "down" && written > value) digits -= 1;
  return [digits, exponent];
}

function plain(digits, exponent) {
  if (exponent >= 0) return grouped(`${digits}${"0".repeat(exponent)}`);
  const all = `${digits}`.padStart(1 - exponent, "0");
  return trimmed(`${grouped(all.slice(0, exponent))}.${all.slice(exponent)}`);
}

const trimmed = (text) => text.replace(/\.?0+$/, "");
const grouped = (text) => text.replace(/\B(?=(\d{3})+$)/g, ",");
