// Short messages above the dock.
//
// toast(text, {action, run, seconds}) -> close()
//   `action` is the label of a button, `run` what it does; after `seconds` (6, with an action 10) the message goes away.
//   It stays while the pointer or the focus is on it. At most three are shown.

import { find, icon, make } from "./dom.js";
import { t } from "./i18n.js";

const SHOWN = 3;

// Toasts stay above the controls that the panel keeps at the bottom, also when those grow or the panel changes.
const docks = new ResizeObserver(() => {
  const shown = [...document.querySelectorAll(".dock")].filter((dock) => dock.offsetHeight);
  const heights = shown.map((dock) => innerHeight - dock.getBoundingClientRect().top);
  find("toasts").style.setProperty("--dock", `${Math.max(0, ...heights)}px`);
});

export function toast(text, { action = "", run = () => {}, seconds = action ? 10 : 6 } = {}) {
  const box = find("toasts");
  const element = make("div", { className: "toast" }, make("span", { textContent: text, dir: "auto" }));
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  let timer = 0;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(close, 1000 * seconds);
  };
  const hold = () => clearTimeout(timer);
  if (action) {
    const button = make("button", { type: "button", className: "quiet", textContent: action });
    button.onclick = () => {
      close();
      run();
    };
    element.append(button);
  }
  const dismiss = make("button", { type: "button", className: "icon", onclick: close }, icon("close"));
  dismiss.setAttribute("aria-label", t("shell.dismiss"));
  element.append(dismiss);
  element.onpointerenter = hold;
  element.onpointerleave = wait;
  element.addEventListener("focusin", hold);
  element.addEventListener("focusout", wait);
  for (const dock of document.querySelectorAll(".dock")) docks.observe(dock);
  while (box.children.length >= SHOWN) box.firstChild.remove();
  box.append(element);
  wait();
  return close;
}
