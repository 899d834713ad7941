// The menu of a transcript: copy, save as a file, translate.
//
// exportMenu(button, getTranscript)  show `button` and open the menu with it; `getTranscript()` gives {transcript, rows}, or a promise of it
// wordings()                         the texts of files in the language of the page, for `options.words` of export.js

import { get } from "./api.js";
import { copy } from "./clipboard.js";
import { make, save } from "./dom.js";
import { hasOption } from "./health.js";
import { i18n, t } from "./i18n.js";
import { namedIn } from "./languages.js";
import { store } from "./store.js";
import { toast } from "./toast.js";
import { translateTranscript } from "./translation.js";

const TRANSLATIONS = { none: "export.translation_none", both: "export.translation_both", only: "export.translation_only" };
const EDGE = 8; // pixels between the menu and the window

let menus = 0;

export function wordings() {
  return { speaker: (id) => t("export.speaker", { id }), cut: t("export.cut") };
}

export function exportMenu(button, getTranscript) {
  const menu = make("div", { className: "menu export-menu", id: `export-menu-${++menus}`, popover: "auto" });
  menu.setAttribute("role", "dialog");
  button.setAttribute("aria-haspopup", "dialog");
  button.setAttribute("aria-expanded", "false");
  button.after(menu);
  button.hidden = false;
  button.onclick = async () => {
    if (menu.matches(":popover-open")) return menu.hidePopover();
    await fill(menu, await getTranscript());
    menu.showPopover();
    place(menu, button);
    menu.querySelector("button").focus();
  };
  menu.ontoggle = ({ newState }) => button.setAttribute("aria-expanded", String(newState === "open"));
  menu.onkeydown = (event) => move(menu, event);
}

async function fill(menu, { transcript, rows }) {
  // With what makes zip files it is a quarter of the scripts, and most visits do without.
  const { exported, fileName, formats, zipOf } = await import("./export.js");
  menu.setAttribute("aria-label", t("export.menu"));
  const kind = choice("export.text", Object.entries(TRANSLATIONS).map(([name, label]) => [name, t(label)]));
  kind.field.hidden = !rows.some((row) => row.translation);
  kind.select.value = kind.field.hidden ? "none" : "both";
  const options = () => ({ translation: kind.select.value, words: wordings() });
  const command = (label, run) => {
    const item = make("button", { type: "button", textContent: label });
    item.onclick = () => {
      menu.hidePopover();
      run();
    };
    return item;
  };
  const file = (id) => exported(id, transcript, rows, options());
  const download = (id) => {
    const { name, type, text, bytes } = file(id);
    save(name, type, text ?? bytes);
  };
  menu.replaceChildren(
    kind.field,
    command(t("export.copy"), () => copy(file("txt").text)),
    command(t("export.copy_times"), () => copy(file("txt-times").text)),
    make("hr"),
    ...formats.map(({ id, label }) => command(t(label), () => download(id))),
    command(t("export.zip"), async () =>
      save(`${fileName(transcript.title)}.zip`, "application/zip", await zipOf([{ transcript, rows }], options(), formats.map(({ id }) => id))),
    ),
    ...(await translator(menu, transcript)),
  );
}

async function translator(menu, transcript) {
  const health = await get("health").catch(() => null);
  if (!hasOption(health, "translation")) return [];
  const into = choice("export.translate_into", namedIn(i18n.language));
  into.select.value = transcript.options.target || (transcript.languageCode === i18n.language ? "en" : i18n.language);
  const run = make("button", { type: "button", textContent: t("export.translate") });
  run.onclick = () => {
    menu.hidePopover();
    translate(transcript, into.select.value);
  };
  return [make("hr"), into.field, run];
}

async function translate(transcript, target) {
  const close = toast(t("export.translating"), { seconds: 3600 });
  try {
    const missing = await translateTranscript(store, transcript.id, target, { source: transcript.languageCode });
    await store.update(transcript.id, { options: { ...transcript.options, target } });
    close();
    if (missing) toast(t("files.translated_partly", { count: missing }));
  } catch (problem) {
    close();
    toast(`${t("files.translation_failed")} ${problem.text ?? ""}`.trim(), { action: t("export.again"), run: () => translate(transcript, target) });
  }
}

function choice(label, values) {
  const select = make("select", {}, ...values.map(([value, name]) => new Option(name, value)));
  return { select, field: make("label", { className: "small" }, t(label), select) };
}

/** Below the button, or above it where there is more room. */
function place(menu, button) {
  const [own, at] = [menu.getBoundingClientRect(), button.getBoundingClientRect()];
  const below = innerHeight - at.bottom - EDGE >= own.height || innerHeight - at.bottom > at.top;
  // A button on the right has its menu to the left, away from the scroll bar.
  const left = at.left + at.right > innerWidth ? at.right - own.width : at.left;
  menu.style.left = `${Math.max(EDGE, Math.min(left, innerWidth - own.width - EDGE))}px`;
  menu.style.top = below ? `${at.bottom + 4}px` : "auto";
  menu.style.bottom = below ? "auto" : `${innerHeight - at.top + 4}px`;
  menu.style.maxHeight = `${(below ? innerHeight - at.bottom : at.top) - EDGE - 4}px`;
}

/** Arrow keys go through the commands. */
function move(menu, event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const commands = [...menu.querySelectorAll("button")];
  const at = commands.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  commands.at((at + step) % commands.length).focus();
}
