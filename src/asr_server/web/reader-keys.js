// The keys of the reader, and the list of them that "?" shows.

import { find, make } from "./dom.js";
import { t } from "./i18n.js";
import { wordBeside } from "./row-words.js";
import { beside } from "./rows-view.js";

const STEP_S = 5;

// Names of keys differ between keyboards.
const NAMES = {
  Space: "reader.space",
  Shift: "reader.shift",
  Enter: "reader.enter",
  Backspace: "reader.backspace",
  Escape: "reader.escape",
  Ctrl: "reader.ctrl",
};
// [what the list shows, message]
const LIST = [
  ["Space", "reader.key_play"],
  ["← →", "reader.key_seconds"],
  ["Shift + ← →", "reader.key_words"],
  ["↑ ↓", "reader.key_rows"],
  ["< >", "reader.key_speed"],
  ["/", "reader.key_search"],
  ["E", "reader.key_edit"],
  ["Enter", "reader.key_split"],
  ["Backspace", "reader.key_join"],
  ["Escape", "reader.key_end"],
  ["Ctrl + Space", "reader.key_play_editing"],
  ["Ctrl + Z, Ctrl + Shift + Z", "reader.key_undo"],
  ["?", "reader.key_help"],
];

export function beginKeys(parts) {
  const dialog = find("reader-keys");
  const help = () => {
    find("reader-keys-list").replaceChildren(...LIST.map(lineOf));
    dialog.showModal();
  };
  find("reader-help").onclick = help;
  find("reader-keys-close").onclick = () => dialog.close();
  addEventListener("keydown", (event) => {
    if (!parts.isOpen() || dialog.open || event.defaultPrevented || event.isComposing) return;
    const run = commandOf(event, { ...parts, help });
    if (!run) return;
    event.preventDefault();
    run();
  });
}

function lineOf([keys, message]) {
  const shown = keys.replace(/\w{2,}/g, (name) => t(NAMES[name]));
  return make("div", {}, make("dt", {}, make("kbd", { textContent: shown, dir: "ltr" })), make("dd", { textContent: t(message) }));
}

function commandOf(event, parts) {
  const { player, view, finder } = parts;
  const { target, key } = event;
  const typing = target.isContentEditable || target.matches("input, select, textarea");
  if ((event.ctrlKey || event.metaKey) && !event.altKey) return withControl(event, parts, typing);
  if (typing || event.altKey || target.closest("dialog, [popover]")) return null;
  const control = target.closest("button, a, summary");
  const row = target.closest("li.line");
  if (event.shiftKey && key.startsWith("Arrow")) {
    const direction = { ArrowRight: 1, ArrowLeft: -1 }[key];
    return direction && (() => player.seek(wordBeside(view.history.rows, player.seconds, direction)));
  }
  switch (key) {
    case " ":
      // A button is pressed by it; on the buttons of a row, Enter does that.
      return control && !row ? null : () => player.toggle();
    case "ArrowLeft":
      return () => player.step(-STEP_S);
    case "ArrowRight":
      return () => player.step(STEP_S);
    case "ArrowUp":
    case "ArrowDown":
      return row && (() => moveTo(view, beside(row, key === "ArrowUp" ? -1 : 1)));
    case "<":
    case ">":
      return () => player.faster(key === ">" ? 1 : -1);
    case "/":
      return () => finder.open();
    case "Escape":
      return finder.shown && (() => finder.close());
    case "?":
      return parts.help;
    case "e":
    case "E":
      return () => parts.editor.begin(row ? Number(row.dataset.n) : view.spoken);
    default:
      return null;
  }
}

function withControl(event, parts, typing) {
  const key = event.key.toLowerCase();
  // In a field they belong to the field; in a row's text the browser undoes what was typed.
  if (key === "z" && !typing) return event.shiftKey ? parts.redo : parts.undo;
  if (key === "y" && !typing) return parts.redo;
  if (key === " " && (!typing || event.target.isContentEditable)) return () => parts.player.toggle();
  return null;
}

function moveTo(view, item) {
  if (!item) return;
  view.reach(item);
  item.firstChild.focus();
}
