// What became of a recording: a bar over its length, and in words how much has text and which parts were not heard.
//
// showCoverage(transcript, lengthS, playAt)  show it in the reader; `playAt(seconds)` plays a part, null where there is no sound
// unheard(transcript)                        the parts {start, end} that were not heard
// outcomes(parts)                            for tests

import { clock, find, make, shape } from "./dom.js";
import { t } from "./i18n.js";
import { addGap } from "./transcript.js";

// Of each kind, and of each reason for which a part is unheard.
const LABELS = {
  words: "coverage.words",
  silence: "coverage.silence",
  sound: "coverage.sound",
  unheard: "coverage.unheard",
  detector: "coverage.detector",
  loop: "coverage.loop",
  budget: "coverage.budget",
  failed: "coverage.failed",
  damaged: "coverage.damaged",
  connection: "coverage.connection",
};
const KINDS = ["words", "silence", "sound", "unheard"];
const MOST_PLACES = 200; // that are listed for one reason

export function showCoverage(transcript, lengthS, playAt) {
  const parts = partsOf(transcript);
  find("reader-coverage").hidden = !parts.length;
  const bar = find("reader-coverage-bar");
  bar.setAttribute("viewBox", `0 0 ${lengthS || 1} 1`);
  // One path for each kind: a long recording has thousands of parts.
  bar.replaceChildren(...KINDS.map((kind) => drawn(kind, parts.filter((part) => part.kind === kind))));
  find("reader-coverage-list").replaceChildren(...outcomes(parts).map((one) => item(one, playAt)));
}

export function unheard(transcript) {
  return partsOf(transcript).filter(({ kind }) => kind === "unheard");
}

/** The parts {kind, reason?, start, end} that are known. Of a live recording these are the ones that were lost. */
function partsOf({ coverage, gaps }) {
  return coverage ?? (gaps ?? []).map((gap) => ({ ...gap, kind: "unheard", reason: "connection" }));
}

/** What the parts have in common: [{kind, reason?, seconds, places}], of what is unheard one for each reason. Places near each other
 * are one. */
export function outcomes(parts) {
  const found = new Map();
  for (const { kind, reason, start, end } of parts) {
    const key = `${kind} ${reason ?? ""}`;
    if (!found.has(key)) found.set(key, { kind, reason, seconds: 0, places: [] });
    found.get(key).seconds += end - start;
    if (kind === "unheard") addGap(found.get(key).places, start, end);
  }
  return [...found.values()].sort((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind));
}

function drawn(kind, parts) {
  return shape("path", { class: kind, d: parts.map(({ start, end }) => `M${start} 0H${end}V1H${start}Z`).join("") });
}

function item({ kind, reason, seconds, places }, playAt) {
  const label = t(LABELS[reason] ?? LABELS[kind]);
  const length = seconds < 60 ? t("coverage.seconds", { seconds: Math.round(10 * seconds) / 10 }) : clock(seconds);
  const line = make("li", { className: kind }, make("span", { className: "kind" }), make("span", {}, label), make("span", { className: "length" }, length));
  if (places.length) line.append(make("ul", {}, ...places.slice(0, MOST_PLACES).map((place) => placeItem(place, label, playAt))));
  if (places.length > MOST_PLACES) line.append("…");
  return line;
}

function placeItem({ start, end }, label, playAt) {
  const times = `${clock(start)}–${clock(end)}`;
  if (!playAt) return make("li", {}, times);
  const button = make("button", { type: "button", className: "quiet", textContent: times, onclick: () => playAt(start) });
  button.setAttribute("aria-label", `${t("reader.play_from", { time: times })}: ${label}`);
  return make("li", {}, button);
}
