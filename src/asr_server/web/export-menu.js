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
import { moveIn, place } from "./menu.js";
import { inParagraphs } from "./paragraphs.js";
import { speakerName } from "./speakers.js";
import * as speech from "./speech.js";
import { store } from "./store.js";
import { toast } from "./toast.js";
import { translateTranscript } from "./translation.js";

const TRANSLATIONS = { none: "export.translation_none", both: "export.translation_both", only: "export.translation_only" };

let menus = 0;

export function wordings() {
  return { speaker: (id) => speakerName(id), cut: t("export.cut") };
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
  menu.onkeydown = (event) => moveIn(menu, event);
}

async function fill(menu, { transcript, rows: given }) {
  // With what makes zip files it is a quarter of the scripts, and most visits do without.
  const { exported, fileName, formats, zipOf } = await import("./export.js");
  const rows = await inParagraphs(transcript, given);
  menu.setAttribute("aria-label", t("export.menu"));
  const kind = choice("export.text", Object.entries(TRANSLATIONS).map(([name, label]) => [name, t(label)]));
  kind.field.hidden = !rows.some((row) => row.translation);
  kind.select.value = kind.field.hidden ? "none" : "both";
  const failed = ({ text }) => toast(text);
  const options = () => ({ translation: kind.select.value, words: wordings(), failed });
  const command = (label, run) => {
    const item = make("button", { type: "button", textContent: label });
    item.onclick = () => {
      menu.hidePopover();
      run();
    };
    return item;
  };
  const file = (id) => exported(id, transcript, rows, options());
  const download = (id) => file(id).then(({ name, type, text, bytes }) => save(name, type, text ?? bytes), failed);
  menu.replaceChildren(
    kind.field,
    command(t("export.copy"), async () => copy((await file("txt")).text)),
    command(t("export.copy_times"), async () => copy((await file("txt-times")).text)),
    make("hr"),
    ...formats.map(({ id, label }) => command(t(label), () => download(id))),
    command(t("export.zip"), async () =>
      save(`${fileName(transcript.title)}.zip`, "application/zip", await zipOf([{ transcript, rows }], options(), formats.map(({ id }) => id))),
    ),
    ...(await further(menu, transcript, command, async () => (await file("txt")).text)),
  );
}

/** What not every server can do. */
async function further(menu, transcript, command, getText) {
  const health = await get("health").catch(() => null);
  const reading = hasOption(health, "speech") ? [make("hr"), command(t("export.read_aloud"), async () => speech.take(await getText()))] : [];
  return hasOption(health, "translation") ? [...reading, ...translator(menu, transcript)] : reading;
}

function translator(menu, transcript) {
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
