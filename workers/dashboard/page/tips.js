// The legend, folded into the titles of what it explains: seen with the pointer, with the focus, and at a touch.

import { byId } from "./dom.js";

// The pointer may go from the title to its text, to read or copy it.
const LEAVE_MS = 200;
const EDGE_PX = 8;

export function startTips() {
  let open = null;
  let timer = 0;
  const hide = () => {
    clearTimeout(timer);
    open?.hidePopover();
    open = null;
  };
  const show = (title) => {
    const tip = byId(title.dataset.tip);
    clearTimeout(timer);
    if (tip === open || !tip.textContent.trim()) return;
    hide();
    open = tip;
    tip.showPopover();
    const { left, bottom } = title.getBoundingClientRect();
    tip.style.left = `${Math.max(EDGE_PX, Math.min(left, innerWidth - tip.offsetWidth - EDGE_PX))}px`;
    tip.style.top = `${bottom + 2}px`;
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(hide, LEAVE_MS);
  };
  for (const title of document.querySelectorAll("[data-tip]")) {
    title.addEventListener("pointerenter", () => show(title));
    title.addEventListener("focus", () => show(title));
    title.addEventListener("click", () => show(title));
    title.addEventListener("pointerleave", soon);
    title.addEventListener("blur", hide);
  }
  for (const tip of document.querySelectorAll(".tip")) {
    tip.addEventListener("pointerenter", () => clearTimeout(timer));
    tip.addEventListener("pointerleave", soon);
  }
  addEventListener("keydown", ({ key }) => key === "Escape" && hide());
  addEventListener("scroll", hide, { capture: true, passive: true });
}
