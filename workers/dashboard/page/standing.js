// The state of the page: whether data arrives, and how old it is; in the header, the tab's icon and its title.

import { byId, set } from "./dom.js";
import { KAFKA, oneLine, span } from "./words.js";

// A tick may be late by this much, and by three of its own width, before it is called so.
const LATE_TICKS = 3;
const LATE_MS = 10000;
const ICONS = { live: "page/icon.svg", stale: "page/icon-stale.svg" };

// connected: null until the server has answered for the first time; state: the connection to Kafka; newest: a snapshot, or null.
export function showStanding({ followed, connected, state, newest, now }) {
  const age = newest ? Math.max(0, now - newest.end) : 0;
  const late = newest && age > LATE_TICKS * (newest.end - newest.start) + LATE_MS;
  const [mark, word] = standing(followed, connected, state.kafka, newest, late);
  byId("state").dataset.state = mark;
  set(byId("connection"), word);
  byId("age").textContent = newest ? `counted until ${ago(age)}` : connected === null ? "" : "nothing yet";
  showIcon(mark === "late" || mark === "lost" ? ICONS.stale : ICONS.live);
  const trouble = connected && KAFKA[state.kafka] && state.kafka !== "reading" && state.kafka !== "connecting";
  const text = trouble ? `${KAFKA[state.kafka]}${state.kafka === "missing" ? (state.topics ?? []).join(", ") : ""}` : "";
  byId("problem").hidden = !text;
  set(byId("problem"), text);
}

function standing(followed, connected, kafka, newest, late) {
  if (connected === null) return ["connecting", "Connecting"];
  if (followed && !connected) return ["lost", "Reconnecting"];
  if (kafka === "reading") return ["connecting", "Reading"];
  if (kafka === "connecting") return ["connecting", "No Kafka"];
  if (kafka !== "live") return ["lost", "No Kafka"];
  if (late) return ["late", "Waiting"];
  return newest ? ["live", "Live"] : ["connecting", "Waiting"];
}

export function showTitle(worker, histogram, key) {
  const seen = [key === null ? null : oneLine(key), histogram].filter((one) => one);
  document.title = [seen.join(" · "), worker, "Quietcount"].filter((one) => one).join(" – ");
}

function showIcon(address) {
  const link = byId("icon");
  if (link.getAttribute("href") !== address) link.setAttribute("href", address);
}

function ago(ms) {
  return ms < 120e3 ? `${Math.floor(ms / 1000)} s ago` : `${span(ms)} ago`;
}
