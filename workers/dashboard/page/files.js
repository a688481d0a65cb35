// What is drawn, as a file: the page writes it itself, so that it holds exactly that.

const text = new TextEncoder();
const MAGIC = text.encode("PAR1");
// Of thrift's compact protocol, and of Parquet's types.
const [I32, I64, BINARY, LIST, STRUCT] = [5, 6, 8, 9, 12];
const KINDS = { int: 2, double: 5, text: 6 };
const [PLAIN, RLE] = [0, 3];

// columns: [[name, kind, value of a row]], kind: "int", "double" or "text"; "time" is two columns, ms and ISO 8601. null is no value.
export function table(columns, rows) {
  return columns.flatMap(([name, kind, of]) => {
    const values = rows.map((row) => of(row) ?? null);
    if (kind !== "time") return [{ name, kind, values }];
    return [{ name, kind: "int", values }, { name: `${name}_time`, kind: "text", values: values.map((ms) => (ms === null ? null : new Date(ms).toISOString())) }];
  });
}

// Makes a link one to a file: what is in it is written when somebody is about to follow it. made(): {name, columns}, or null.
export function linkFile(link, format, made) {
  let address = null;
  const fill = (event) => {
    const found = made();
    if (address !== null) URL.revokeObjectURL(address);
    address = null;
    if (found === null) {
      event.preventDefault();
      return;
    }
    const [parts, type] = format === "csv" ? [[csv(found.columns)], "text/csv"] : [parquet(found.columns), "application/vnd.apache.parquet"];
    address = URL.createObjectURL(new Blob(parts, { type }));
    Object.assign(link, { href: address, download: `${found.name}.${format}` });
  };
  for (const kind of ["click", "auxclick", "contextmenu"]) link.addEventListener(kind, fill);
}

// A name of characters that any system takes; times without what they do not need.
export const fileName = (...parts) => parts.map((part) => `${part}`.replace(/[^\w.-]/g, "").slice(0, 80)).filter((part) => part).join("_");
export const fileTime = (ms) => new Date(ms).toISOString().replace(/:|\.000|:00\.000/g, "");

function csv(columns) {
  const cell = (value) => (value === null ? "" : /[",\r\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : `${value}`);
  const rows = columns[0].values.map((_, i) => columns.map(({ values }) => cell(values[i])).join(","));
  return `${[columns.map(({ name }) => name).join(","), ...rows].join("\n")}\n`;
}

// One row group, one page a column, every value optional, nothing compressed (parquet.apache.org, "File Format").
function parquet(columns) {
  const rows = columns[0].values.length;
  const parts = [MAGIC];
  let at = MAGIC.length;
  const chunks = columns.map((column) => {
    const page = pageOf(column);
    const levels = [[1, I32, rows], [2, I32, PLAIN], [3, I32, RLE], [4, I32, RLE]];
    const head = struct([[1, I32, 0], [2, I32, page.length], [3, I32, page.length], [5, STRUCT, levels]]);
    const size = head.length + page.length;
    const about = [[1, I32, KINDS[column.kind]], [2, LIST, [I32, [PLAIN, RLE]]], [3, LIST, [BINARY, [column.name]]], [4, I32, 0], [5, I64, rows], [6, I64, size], [7, I64, size], [9, I64, at]];
    parts.push(new Uint8Array(head), page);
    at += size;
    return { size, fields: [[2, I64, at - size], [3, STRUCT, about]] };
  });
  const root = [[4, BINARY, "rows"], [5, I32, columns.length]];
  const schema = columns.map(({ name, kind }) => [[1, I32, KINDS[kind]], [3, I32, 1], [4, BINARY, name], ...(kind === "text" ? [[6, I32, 0]] : [])]);
  const group = [[1, LIST, [STRUCT, chunks.map((one) => one.fields)]], [2, I64, chunks.reduce((sum, one) => sum + one.size, 0)], [3, I64, rows]];
  const footer = struct([[1, I32, 1], [2, LIST, [STRUCT, [root, ...schema]]], [3, I64, rows], [4, LIST, [STRUCT, [group]]]]);
  return [...parts, new Uint8Array(footer), little(footer.length, 4), MAGIC];
}

// Which values there are, a bit for each, and then these.
function pageOf({ kind, values }) {
  const groups = Math.ceil(values.length / 8);
  const bits = new Uint8Array(groups);
  for (const [i, value] of values.entries()) if (value !== null) bits[i >> 3] |= 1 << (i & 7);
  const run = varint((groups << 1) | 1);
  const known = values.filter((value) => value !== null).map((value) => {
    if (kind !== "text") return kind === "int" ? little(value, 8) : new Uint8Array(new Float64Array([value]).buffer);
    const bytes = text.encode(value);
    return joined([little(bytes.length, 4), bytes]);
  });
  return joined([little(run.length + groups, 4), new Uint8Array(run), bits, ...known]);
}

function little(value, size) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigInt64(0, BigInt(value), true);
  return bytes.slice(0, size);
}

function joined(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

// [[id, type, value]] in the order of their ids.
function struct(fields) {
  let before = 0;
  const bytes = fields.flatMap(([id, type, value]) => {
    const head = ((id - before) << 4) | type;
    before = id;
    return [head, ...encoded(type, value)];
  });
  return [...bytes, 0];
}

function encoded(type, value) {
  if (type === STRUCT) return struct(value);
  if (type === BINARY) {
    const bytes = [...text.encode(value)];
    return [...varint(bytes.length), ...bytes];
  }
  if (type !== LIST) return varint(2 * value); // none is below 0
  const [of, values] = value;
  const head = values.length < 15 ? [(values.length << 4) | of] : [0xf0 | of, ...varint(values.length)];
  return [...head, ...values.flatMap((one) => encoded(of, one))];
}

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return [...bytes, value];
}
