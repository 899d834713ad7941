// The menu at the name of a speaker: another name, and where speakers were mistaken, another speaker.

import { make } from "./dom.js";
import { t } from "./i18n.js";
import { moveIn, place } from "./menu.js";
import { paintSpeaker, speakerName } from "./speakers.js";

const LONGEST = 100; // characters of a name

let menu = null; // the one that is open

/** Open the menu of the speaker `id` at `button`; `names` are all speakers. `on`: {rename(id, name)}; where rows can be changed
 * also {give(id), create(), merge(from, into)}: this row was said by another one, by somebody new, or two speakers are one. */
export function openSpeakerMenu(button, id, names, on) {
  closeSpeakerMenu();
  const mine = make("div", { className: "menu speaker-menu", popover: "auto" });
  menu = mine;
  mine.setAttribute("role", "dialog");
  mine.setAttribute("aria-label", id === undefined ? t("speakers.line_of") : speakerName(id, names));
  mine.append(...content(mine, id, names, on));
  mine.onkeydown = (event) => moveIn(mine, event);
  mine.ontoggle = ({ newState }) => newState === "closed" && mine.remove();
  // Beside the button it would be part of the line, and come and go with it.
  document.body.append(mine);
  mine.showPopover();
  place(mine, button);
  (mine.querySelector("input") ?? mine.querySelector("button")).focus();
}

export function closeSpeakerMenu() {
  if (menu?.isConnected) menu.hidePopover();
  menu = null;
}

function content(box, id, names, on) {
  const others = Object.keys(names).filter((one) => one !== id);
  const command = (label, run, speaker) => {
    const item = make("button", { type: "button" }, make("bdi", { textContent: label }));
    paintSpeaker(item, speaker, names);
    item.onclick = () => {
      closeSpeakerMenu();
      run();
    };
    return item;
  };
  const group = (label, ...items) => {
    const box = make("div", {}, make("p", { className: "small", textContent: label }), ...items);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", label);
    return box;
  };
  const parts = id === undefined ? [] : [field(box, id, names, on)];
  if (!on.give) return parts;
  const each = (run) => others.map((one) => command(speakerName(one, names), () => run(one), one));
  parts.push(group(t("speakers.line_of"), ...each(on.give), command(t("speakers.somebody_else"), on.create)));
  if (id !== undefined && others.length) parts.push(group(t("speakers.same_as", { name: speakerName(id, names) }), ...each((one) => on.merge(id, one))));
  return parts;
}

function field(box, id, names, on) {
  const before = names[id] || "";
  const input = make("input", { type: "text", value: before, placeholder: speakerName(id), maxLength: LONGEST, dir: "auto", autocomplete: "off" });
  const form = make("form", {}, make("label", { className: "small" }, t("speakers.name"), input));
  form.onsubmit = (event) => {
    event.preventDefault();
    closeSpeakerMenu();
  };
  input.onkeydown = (event) => {
    if (event.key === "Escape" && !event.isComposing) input.value = before;
  };
  // What was typed counts however else the menu is left.
  box.addEventListener("beforetoggle", ({ newState }) => {
    const name = input.value.trim();
    if (newState === "closed" && name !== before) on.rename(id, name);
  });
  return form;
}
