// The page: its panels, the routes between them, the settings, and the state of the server.
//
// A panel is a <section> of index.html and a module with
//   begin()        (if it has one) called once, after the messages were loaded
//   open(id)       (if it has one) called when the panel is shown; `id` is what follows in the route, else ""
//   close()        (if it has one) called when another panel is shown
// Routes are the hash: #live, #files, #speak, #transcripts, #status, and #t/ID for the reader. Links and `location.hash = ...` change it.

import { fileUrl, get, key, keepKey, url } from "./api.js";
import { find, say } from "./dom.js";
import * as files from "./files.js";
import { ask, watch } from "./health.js";
import { LANGUAGES, apply, i18n, t, text } from "./i18n.js";
import { restrict } from "./languages.js";
import * as library from "./library.js";
import * as live from "./live.js";
import { dismiss } from "./notice.js";
import * as reader from "./reader.js";
import { setTitle } from "./recording-mark.js";
import { takeShared } from "./shared-files.js";
import * as speak from "./speech.js";
import * as status from "./status.js";
import { toast } from "./toast.js";

const PANELS = { live, files, speak, transcripts: library, reader, status };
const READER = /^t\/([\w-]+)$/;

let shown = null; // name of the panel

/** [panel, id] of the address. */
function route() {
  const hash = location.hash.slice(1);
  const id = READER.exec(hash)?.[1];
  if (id) return ["reader", id];
  return [hash in PANELS && hash !== "reader" ? hash : "live", ""];
}

function show() {
  const [name, id] = route();
  if (shown) PANELS[shown].close?.();
  shown = name;
  for (const panel of Object.keys(PANELS)) find(panel).hidden = panel !== name;
  // The reader belongs to the list.
  const tab = name === "reader" ? "transcripts" : name;
  for (const link of find("tabs").children) {
    if (link.id === `tab-${tab}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showTitle();
  PANELS[name].open?.(id);
}

/** The reader puts the name of its transcript there. */
function showTitle() {
  if (shown !== "reader") setTitle(`${find(`tab-${shown}`).textContent} · ${t("shell.title")}`);
}

function beginSettings() {
  const dialog = find("settings");
  const field = find("key-field");
  const mark = () => find("settings-open").classList.toggle("set", key() !== "");
  find("settings-open").onclick = () => {
    field.value = key();
    wrong(null);
    dialog.showModal();
  };
  const wrong = (problem) => say(find("key-problem"), problem?.text ?? "");
  const keep = async (value) => {
    const before = key();
    keepKey(value);
    const problem = key() ? await get("v1/models").then(() => null, (problem) => problem) : null;
    if (problem?.code === "unauthorized") {
      keepKey(before);
      return wrong(problem);
    }
    mark();
    dialog.close();
    toast(t(key() ? "shell.key_saved" : "shell.key_forgotten"));
    // Notices about the last key do not apply to this one.
    dismiss("unauthorized");
    ask();
  };
  find("key-form").onsubmit = (event) => {
    event.preventDefault();
    keep(field.value);
  };
  find("key-forget").onclick = () => keep("");
  find("settings-close").onclick = () => dialog.close();
  mark();
  const languages = find("page-language");
  for (const [code, name] of Object.entries(LANGUAGES)) languages.append(Object.assign(new Option(name, code), { lang: code }));
  languages.value = i18n.chosen;
  languages.onchange = () => i18n.choose(languages.value);
}

function showServer(state) {
  const [kind, word] = status.summary(state);
  find("server").className = `server ${kind}`;
  text(find("server-word"), word);
  for (const note of document.querySelectorAll(".model-note")) note.hidden = state.health?.model_id !== note.dataset.model;
  if (state.health) for (const select of document.querySelectorAll("select.spoken-language")) restrict(select, state.health.languages);
}

await i18n.load();
for (const panel of Object.values(PANELS)) panel.begin?.();
beginSettings();
apply(document);
addEventListener("hashchange", show);
i18n.onchange(showTitle);
document.querySelector("main").inert = false; // an earlier press would be lost
show();
watch(showServer, 10);
const shared = await takeShared();
if (shared.length) files.take(shared);
// Not every browser, and no page without TLS, has service workers; all the rest works without.
navigator.serviceWorker?.register(fileUrl("service-worker.js"), { scope: url("") }).catch(() => {});
