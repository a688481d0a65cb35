// Downloads: files of the server, of what is shown. They are fetched, as a link cannot send a token.

import { address, fetched } from "./net.js";

const FORMATS = { csv: "CSV", parquet: "Parquet" };
const TABLES = { items: "items", ticks: "ticks" };
const FAILED = "It cannot be had now: ";

// Fills an element with the links to both tables. asked(): [path, query] of what is shown, or null; onNoToken(): a token is needed.
export function linkFiles(box, asked, onNoToken) {
  const wrong = document.createElement("output");
  for (const [table, words] of Object.entries(TABLES)) {
    box.append(` ${words} `);
    for (const [format, name] of Object.entries(FORMATS)) {
      const link = document.createElement("a");
      Object.assign(link, { className: "link", href: "#", textContent: name });
      Object.assign(link.dataset, { table, format });
      const aim = () => {
        const found = asked();
        if (found !== null) link.href = address(found[0], { ...found[1], table, format });
        return found !== null;
      };
      // So that its address can be copied, too.
      for (const kind of ["auxclick", "contextmenu"]) link.addEventListener(kind, aim);
      link.addEventListener("click", async (event) => {
        event.preventDefault();
        if (!aim()) return;
        wrong.textContent = "";
        const { status, blob, file, error } = await fetched(link.href);
        if (status === 401) onNoToken();
        else if (status !== 200) wrong.textContent = `${FAILED}${error}`;
        else save(blob, file);
      });
      box.append(link);
    }
  }
  box.append(" ", wrong);
}

function save(blob, name) {
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(blob), download: name });
  link.click();
  // The browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
