// In which order the rows of a board come: by what is known of them, so that noise alone never leads.

import { sumEnds } from "./noise.js";

export const DEFAULT = "count";
// Whether the largest comes first where nothing else is said.
const FALLS = { count: true, sum: true, mean: true, change: true, name: false };
const BACKWARDS = "-";

// {by, falls} of what the address says: "sum", or backwards "-sum".
export function parseOrder(text) {
  const by = (text ?? DEFAULT).replace(BACKWARDS, "");
  if (!(by in FALLS)) return { by: DEFAULT, falls: true };
  return { by, falls: FALLS[by] !== (text ?? "").startsWith(BACKWARDS) };
}

// What the address says after a title was pressed; null for the usual order.
export function nextOrder(text, pressed) {
  const { by, falls } = parseOrder(text);
  const backwards = by === pressed && falls === FALLS[pressed];
  if (pressed === DEFAULT && !backwards) return null;
  return backwards ? `${BACKWARDS}${pressed}` : pressed;
}

// [least, most] that a row is known to have of what is compared; null where nothing is known of it.
const KNOWN = {
  count: (row) => [row.from, row.to],
  sum: (row, { sum }) => sumEnds(row.sums, sum),
  mean: ({ sums }) => (sums && sums[1] !== null ? [sums[2], sums[3]] : null),
  change: (row, { changeOf }) => changeOf(row),
};

// Rows in an order, those of which nothing is known last. Largest first goes by the least that a row may have, smallest first by the most:
// rows of equal noise come by their values. context: {sum, changeOf}: the errors of sums; [least, most] of a row's change, or null.
export function ordered(rows, text, context) {
  const { by, falls } = parseOrder(text);
  const sign = falls ? -1 : 1;
  if (by === "name") return [...rows].sort((a, b) => sign * a.label.localeCompare(b.label));
  const known = new Map(rows.map((row) => [row, isApart(row) ? null : KNOWN[by](row, context)]));
  const compared = (row) => (known.get(row) === null ? null : known.get(row)[falls ? 0 : 1]);
  return [...rows].sort((a, b) => {
    const [one, other] = [compared(a), compared(b)];
    if (one === null || other === null) return Number(one === null) - Number(other === null) || b.to - a.to;
    return sign * (one - other);
  });
}

// Whether all of what a newly shown item has in a window may have come before it: such rows stand apart, below what is known.
export const isApart = ({ value, least, from }) => least !== value && from <= 0;
