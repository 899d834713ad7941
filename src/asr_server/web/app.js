// The page: its panels, the API key, and the state of the server.

import { key, keepKey } from "./api.js";
import { find } from "./dom.js";
import * as file from "./file.js";
import { ask, watch } from "./health.js";
import { restrict } from "./languages.js";
import * as live from "./live.js";
import { dismiss } from "./notice.js";
import * as status from "./status.js";

const PANELS = ["live", "file", "status"];

function show(name) {
  for (const panel of PANELS) {
    const shown = panel === name;
    find(panel).hidden = !shown;
    find(`tab-${panel}`).setAttribute("aria-selected", String(shown));
    find(`tab-${panel}`).tabIndex = shown ? 0 : -1;
  }
  if (name === "file") file.discover();
  if (name === "status") status.open();
  else status.close();
}

function named() {
  const wanted = location.hash.slice(1);
  return PANELS.includes(wanted) ? wanted : "live";
}

function go(name) {
  history.replaceState(null, "", `#${name}`);
  show(name);
}

/** Arrow keys move between tabs, as the pattern for tabs asks (WAI-ARIA Authoring Practices). */
function move(event) {
  const at = PANELS.indexOf(named());
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: PANELS.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const name = PANELS.at(next % PANELS.length);
  go(name);
  find(`tab-${name}`).focus();
}

function beginKey() {
  const dialog = find("key-dialog");
  const field = find("key-field");
  const mark = () => find("key-open").classList.toggle("set", key() !== "");
  find("key-open").onclick = () => {
    field.value = key();
    dialog.showModal();
  };
  const keep = (value) => {
    keepKey(value);
    mark();
    dialog.close();
    // Notices about the last key do not apply to this one.
    for (const panel of PANELS) dismiss(panel, "unauthorized");
    ask();
  };
  find("key-form").onsubmit = (event) => {
    event.preventDefault();
    keep(field.value);
  };
  find("key-forget").onclick = () => keep("");
  find("key-cancel").onclick = () => dialog.close();
  mark();
}

for (const name of PANELS) find(`tab-${name}`).onclick = () => go(name);
find("tabs").onkeydown = move;
addEventListener("hashchange", () => show(named()));
beginKey();
live.begin();
file.begin();
show(named());
watch((state) => {
  const [kind, text] = status.summary(state);
  // The first attempt may have failed for a missing key or an unreachable server.
  if (state.health && !find("file").hidden) file.discover();
  find("server").className = `server ${kind}`;
  find("server-word").textContent = text;
  for (const note of document.querySelectorAll(".model-note")) note.hidden = state.health?.model_id !== note.dataset.model;
  if (state.health) for (const panel of ["live", "file"]) restrict(find(`${panel}-language`), state.health.languages);
}, 10);
