// The pointer on the rows of the reader: a click plays from a word, a double click edits.

import { timeAt } from "./row-words.js";

/** `parts`: {player, view, editor, playAt(seconds)}. */
export function beginPointer(list, { player, view, editor, playAt }) {
  let pausedBefore = true; // the click that begins a double click plays

  list.onclick = (event) => {
    const item = event.target.closest("li.line");
    const row = item && view.history.row(Number(item.dataset.n));
    if (!row) return;
    view.reach(item);
    if (event.target.closest(".time")) return playAt(row.start);
    if (event.target.closest(".edit")) return editor.begin(row.n);
    const text = event.target.closest(".line-text");
    // A selection is there to be copied.
    if (!text || text.isContentEditable || !getSelection().isCollapsed) return;
    if (event.detail === 1) pausedBefore = player.paused;
    playAt(timeAt(row, offsetAt(event) ?? 0));
  };

  list.ondblclick = (event) => {
    const item = event.target.closest(".line-text")?.closest("li.line");
    if (!item || event.target.isContentEditable) return;
    if (pausedBefore) player.pause();
    getSelection().empty();
    editor.begin(Number(item.dataset.n), offsetAt(event) ?? Infinity);
  };
}

/** The character under the pointer. */
function offsetAt({ clientX, clientY }) {
  const place = document.caretPositionFromPoint?.(clientX, clientY) ?? document.caretRangeFromPoint?.(clientX, clientY);
  return place?.offset ?? place?.startOffset ?? null;
}
