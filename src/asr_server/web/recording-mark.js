// The sign that the microphone is open, on every panel and on the browser's own tab: title, icon, and a link with the time.

import { fileUrl } from "./api.js";
import { clock, find } from "./dom.js";
import { text } from "./i18n.js";

const SIGNS = { live: "●", paused: "‖" };
const MARKED = /^(?:●|‖) \d+:[\d:]+ · /;

/** `title` with the sign and the time of a recording in place of those that it had; no `state` for none. */
export function marked(title, state, seconds) {
  const plain = title.replace(MARKED, "");
  return state ? `${SIGNS[state]} ${clock(seconds)} · ${plain}` : plain;
}

/** Give the page another title, with the sign that it has. */
export function setTitle(title) {
  document.title = `${MARKED.exec(document.title)?.[0] ?? ""}${title}`;
}

/** Show that a recording of so many seconds is "live" or "paused"; "" when there is none. */
export function markRecording(state, seconds) {
  const title = marked(document.title, state, seconds);
  if (document.title !== title) document.title = title;
  const icon = state === "live" ? fileUrl("icon-recording.svg") : fileUrl("icon.svg");
  for (const link of document.querySelectorAll('link[rel~="icon"]')) if (link.href !== icon) link.href = icon;
  const mark = find("recording");
  mark.hidden = !state;
  mark.dataset.state = state;
  if (!state) return;
  text(mark.querySelector("[data-t]"), state === "live" ? "shell.recording" : "live.paused");
  find("recording-time").textContent = clock(seconds);
}
