// One row of the reader as an element: time, speaker, text, translation, and what is to know about it.

import { clock, icon, make } from "./dom.js";
import { t } from "./i18n.js";

/** A list item for the row `n`, without content. */
export function itemOf(n, focusable) {
  const tabIndex = focusable ? 0 : -1;
  const time = make("button", { type: "button", className: "time", tabIndex });
  const body = make("div", { className: "line-body" }, make("p", { className: "line-text", dir: "auto" }));
  const item = make("li", { className: "line" }, time, body, make("button", { type: "button", className: "edit", tabIndex }));
  item.dataset.n = n;
  return item;
}

export function fillItem(item, row) {
  const [time, body, edit] = item.children;
  const text = body.querySelector(".line-text");
  const at = clock(row.start);
  if (time.textContent !== at) {
    time.textContent = at;
    time.setAttribute("aria-label", t("reader.play_from", { time: at }));
    edit.textContent = t("reader.edit");
    edit.setAttribute("aria-label", t("reader.edit_line", { time: at }));
  }
  // While it is edited, the text is the browser's.
  if (!text.isContentEditable && text.textContent !== row.text) text.textContent = row.text;
  paragraph(body, "line-cut", row.complete ? "" : t("reader.incomplete"));
  paragraph(body, "line-translation", row.translation ?? "");
}

function paragraph(body, className, text) {
  let element = body.querySelector(`.${className}`);
  if (!text) return void element?.remove();
  if (!element) body.append((element = make("p", { className, dir: "auto" })));
  if (element.textContent !== text) element.textContent = text;
}

/** Show who speaks: {name, opens, menu(button)}. A row that opens a turn has the name above it. The name "" says that the speaker is
 * not known; null shows nothing. */
export function fillSpeaker(item, speaker) {
  const shown = speaker?.opens && speaker.name;
  item.classList.toggle("voiced", Boolean(speaker));
  fillName(item, shown ? speaker : null);
  fillPerson(item, speaker && !shown ? speaker : null);
}

/** The name above the first row of a turn. */
function fillName(item, speaker) {
  let button = item.querySelector(".speaker");
  if (!speaker) return void button?.remove();
  if (!button) {
    button = make("button", { type: "button", className: "speaker", title: t("speakers.change") });
    button.setAttribute("aria-haspopup", "dialog");
    item.querySelector(".line-body").prepend(button);
  }
  button.textContent = speaker.name;
  button.onclick = () => speaker.menu(button);
}

/** A button of the same menu for further rows, with the name for screen readers. */
function fillPerson(item, speaker) {
  let button = item.querySelector(".person");
  if (!speaker) return void button?.remove();
  if (!button) {
    button = make("button", { type: "button", className: "person", tabIndex: item.firstChild.tabIndex }, icon("person"));
    button.setAttribute("aria-haspopup", "dialog");
    item.append(button);
  }
  button.title = speaker.name ? t("speakers.of", { name: speaker.name }) : t("speakers.unknown");
  button.setAttribute("aria-label", button.title);
  button.onclick = () => speaker.menu(button);
}
