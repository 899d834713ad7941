// The Files panel: a recording in, its text beside a player.

import { get } from "./api.js";
import { clock, copy, find, save, say } from "./dom.js";
import { modelNote, watch } from "./health.js";
import { LANGUAGES, fill } from "./languages.js";
import { Problem } from "./problem.js";
import { notice } from "./notice.js";
import { Player } from "./player.js";
import { SegmentsView } from "./segments-view.js";
import { countWords, cuesOf, srt, vtt } from "./subtitles.js";
import { post, stream } from "./upload.js";

const ui = {};
let discovered = false;
let unwatchServer = () => {};
let view = null;
let player = null;
let file = null;
let sending = null;
let unplayable = false; // by this browser
let answer = null; // {text, language, duration} once complete

export function begin() {
  for (const name of ["input", "drop", "language", "hotwords", "words", "target", "again", "cancel", "bar", "progress"])
    ui[name] = find(`file-${name}`);
  player = new Player(find("file-player"), {
    time: (s) => view.mark(s),
    unplayable: () => {
      unplayable = true;
      showSheet();
    },
  });
  view = new SegmentsView(find("file-lines"), { seek: (s) => player.seek(s), edited: () => player.subtitles(cues()) });
  fill(ui.language);
  ui.input.onchange = () => ui.input.files.length && take([...ui.input.files]);
  ui.again.onclick = () => file && transcribe();
  ui.cancel.onclick = () => sending?.abort();
  find("file-copy").onclick = (event) => copy(event.target, plain());
  for (const format of ["txt", "srt", "vtt", "json"]) find(`file-${format}`).onclick = () => download(format);
  catchDrops();
}

/** The first attempt to learn the server's features may fail for a missing key or an unreachable server. */
export function open() {
  unwatchServer = watch((state) => state.health && discover(), 10);
}

export function close() {
  unwatchServer();
}

/** Show the controls of the server's features, once they are known. */
async function discover() {
  if (discovered) return;
  try {
    const [health, schema] = await Promise.all([get("health"), get("openapi.json")]);
    const option = (name) => health.plan.find((o) => o.name === name);
    find("file-words-field").hidden = !option("aligner")?.active;
    if (discovered) return; // another call was faster
    discovered = true;
    const served = "/v1/audio/translations" in schema.paths && (option("translation")?.active ?? true);
    find("file-target-field").hidden = !served;
    if (served) for (const name of Object.values(LANGUAGES)) ui.target.append(new Option(name, name));
  } catch {
    // The first request will show what is wrong.
  }
}

function catchDrops() {
  let inside = 0;
  const over = (on) => ui.drop.classList.toggle("over", on);
  // The whole page accepts the file: a file dropped elsewhere would replace the page.
  addEventListener("dragover", (event) => ours(event) && event.preventDefault());
  addEventListener("dragenter", () => over((inside += 1) > 0));
  addEventListener("dragleave", () => over((inside -= 1) > 0));
  addEventListener("drop", (event) => {
    over((inside = 0) > 0);
    if (!ours(event)) return;
    event.preventDefault();
    if (!find("files").hidden && event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
}

/** Text dragged into a field is left to the browser. */
function ours(event) {
  return event.dataTransfer.types.includes("Files") || !event.target.matches?.("input, textarea");
}

/** Begin with these files. */
export function take(chosen) {
  file = chosen[0];
  ui.input.value = ""; // so that the same file can be chosen again
  find("file-name").textContent = file.name;
  find("file-work").hidden = false;
  ui.drop.classList.add("small");
  unplayable = false;
  player.open(file);
  transcribe();
  if (chosen.length > 1) notice("files", new Problem("one_at_a_time"));
}

async function transcribe() {
  sending?.abort();
  notice("files", null);
  view.clear();
  answer = null;
  player.subtitles([]);
  const unwatch = watch((state) => say(find("file-model"), state.health?.model_loaded ? "" : modelNote(state)), 2);
  const mine = (sending = request());
  refresh();
  try {
    const got = await mine.done;
    if (mine !== sending) return;
    answer = got;
    got.segments?.forEach(list);
    player.subtitles(cues());
    if (!view.segments.length) notice("files", new Problem("no_speech"));
  } catch (problem) {
    // A user who cancels needs no message.
    if (mine === sending && !mine.cancelled) notice("files", problem);
  } finally {
    unwatch();
    say(find("file-model"), "");
    if (mine === sending) sending = null;
    refresh();
  }
}

/** The request for the chosen options: a stream of segments, or a complete response with more fields. */
function request() {
  const fields = { language: ui.language.value, hotwords: ui.hotwords.value.trim() };
  const wanted = ui.target.value && !find("file-target-field").hidden;
  const words = ui.words.checked && !find("file-words-field").hidden;
  const whole = { sent: progress, text() {} };
  let started;
  if (wanted) {
    const more = { language: ui.target.value, source_language: fields.language, hotwords: fields.hotwords };
    started = post("v1/audio/translations", file, { ...more, response_format: "verbose_json" }, whole);
  } else if (words) {
    const more = { response_format: "verbose_json", "timestamp_granularities[]": "word" };
    started = post("v1/audio/transcriptions", file, { ...fields, ...more }, whole);
  } else {
    return cancellable(stream(file, fields, { sent: progress, segment: add }));
  }
  return cancellable({ ...started, done: started.done.then(verbose) });
}

function cancellable(started) {
  const found = { done: started.done, cancelled: false };
  found.abort = () => {
    found.cancelled = true;
    started.abort();
  };
  return found;
}

/** A verbose_json body with the words sorted into its segments. */
function verbose(body) {
  const { text, language, duration, segments = [], words = [] } = JSON.parse(body);
  const inside = ({ start, end }) => words.filter((word) => word.start >= start - 0.001 && word.start < end);
  const found = segments.length ? segments : text ? [{ start: 0, end: duration, text }] : [];
  return { text, language, duration, segments: found.map((s) => ({ ...s, words: s.words ?? inside(s) })) };
}

function add(segment) {
  list(segment);
  player.subtitles(cues());
  progress(1);
}

function list({ start, end, text, words }) {
  if (text.trim()) view.add({ start, end, text: text.trim(), words });
}

function progress(fraction) {
  if (fraction < 1) {
    ui.bar.value = fraction;
    ui.progress.textContent = `Uploading, ${Math.floor(100 * fraction)} %`;
    return;
  }
  const done = view.segments.at(-1)?.end;
  if (done && player.duration) ui.bar.value = done / player.duration;
  else ui.bar.removeAttribute("value");
  const of = player.duration ? ` of ${clock(player.duration)}` : "";
  ui.progress.textContent = done ? `Transcribing, ${clock(done)}${of}` : "Transcribing…";
}

function refresh() {
  const busy = sending !== null;
  find("file-busy").hidden = !busy;
  find("file-lines").setAttribute("aria-busy", String(busy));
  ui.again.hidden = busy;
  find("file-actions").hidden = busy || !view.segments.length;
  showSheet();
  if (busy) progress(0);
  const words = view.segments.reduce((sum, { text }) => sum + countWords(text), 0);
  const language = answer?.language ? answer.language[0].toUpperCase() + answer.language.slice(1) : "";
  const parts = answer && view.segments.length ? [clock(answer.duration), language, `${words} words`] : [];
  find("file-summary").textContent = parts.filter(Boolean).join(" · ");
}

/** Hide the text area while it is empty, and with it the note about the missing player. */
function showSheet() {
  const some = sending !== null || view.segments.length > 0;
  find("file-sheet").hidden = !some;
  say(find("file-unplayable"), some && unplayable ? new Problem("unplayable").text : "");
}

function cues() {
  return cuesOf(view.segments);
}

function plain() {
  return view.segments.map(({ text }) => text).join("\n");
}

function download(format) {
  const name = `${file.name.replace(/\.[^.]*$/, "") || "transcript"}.${format}`;
  if (format === "txt") save(name, "text/plain", `${plain()}\n`);
  if (format === "srt") save(name, "application/x-subrip", srt(cues()));
  if (format === "vtt") save(name, "text/vtt", vtt(cues()));
  if (format !== "json") return;
  const { language, duration } = answer ?? { language: "", duration: 0 };
  const segments = view.segments.map(({ start, end, text, words }) => ({ start, end, text, words }));
  save(name, "application/json", `${JSON.stringify({ text: plain(), language, duration, segments }, null, 2)}\n`);
}
