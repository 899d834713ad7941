// The Files panel: recordings in, a queue of their transcriptions.
//
// begin(), open()
// take(files)          put files into the queue: chosen, dropped, or shared with the page. One alone opens in the reader
//
// It gives the reader its menu and "Transcribe again", and the list of transcripts its zip.

import { clock, find, icon, make, save, say } from "./dom.js";
import { droppedFiles } from "./dropped-files.js";
import { exportMenu, wordings } from "./export-menu.js";
import { hasOption, modelNote, watch } from "./health.js";
import { i18n, sizeOf, t, text, timeOf } from "./i18n.js";
import { fill } from "./languages.js";
import * as library from "./library.js";
import { notice } from "./notice.js";
import { inParagraphs } from "./paragraphs.js";
import { MOST_ITEMS, Queue, isOver } from "./queue.js";
import * as reader from "./reader.js";
import * as speech from "./speech.js";
import { store } from "./store.js";
import { toast } from "./toast.js";
import { MB, described, giveUp, transcribe } from "./transcription.js";

const STATES = {
  waiting: "files.state_waiting",
  preparing: "files.state_preparing",
  transcribing: "files.state_transcribing",
  translating: "files.state_translating",
  done: "files.state_done",
  cut: "files.state_cut",
  failed: "files.state_failed",
  cancelled: "files.state_cancelled",
};
const MOST_SPEAKERS = 12; // of the choice: of more people, nobody knows the exact number
const LOOK_MS = 300; // after a change, for transcriptions that ended with a page

const queue = new Queue(transcribe, changed);
const views = new Map(); // item -> elements of its line
let storing = Promise.resolve(); // sound is stored one file after the other
let limits = null;
let looking = 0; // timer
let unwatch = null;
let model = ""; // what keeps it from transcribing

export function begin() {
  fill(find("files-language"));
  fill(find("files-target"));
  for (let count = 2; count <= MOST_SPEAKERS; count++) find("files-speakers").append(numberOption(count));
  find("files-input").onchange = ({ target }) => {
    take([...target.files]);
    target.value = ""; // so that the same file can be chosen again
  };
  find("files-zip").onclick = zipFinished;
  find("files-clear").onclick = () => queue.items.filter(isOver).forEach(remove);
  find("files-continue").onclick = continueInterrupted;
  find("files-leave").onclick = leaveInterrupted;
  catchDrops();
  exportMenu(find("reader-export"), reader.current);
  reader.offer({ again: transcribeAgain, goOn, working });
  library.offer({ exportAll: saveZip });
  i18n.onchange(() => {
    queue.items.forEach(show);
    showLimits();
  });
  watch(({ health }) => {
    if (!health) return;
    limits = health.limits;
    find("files-target-field").hidden = !hasOption(health, "translation");
    find("files-speakers-field").hidden = !hasOption(health, "speakers");
    showLimits();
  }, 10);
  store.onchange(({ type }) => {
    if (type !== "transcript") return;
    clearTimeout(looking);
    looking = setTimeout(showInterrupted, LOOK_MS);
  });
  // What is stored can be transcribed after a reload.
  addEventListener("beforeunload", (event) => queue.items.some((item) => !isOver(item) && !item.kept) && event.preventDefault());
}

export function open() {
  showInterrupted();
}

export async function take(files) {
  if (!files.length) return;
  const options = { language: find("files-language").value, hotwords: find("files-hotwords").value.trim(), target: chosen("target"), speakers: chosen("speakers") };
  const alone = files.length === 1 && !queue.busy;
  notice("files", null);
  let item = null;
  for (const [i, file] of files.entries()) {
    item = await add(file, file.name.replace(/\.[^.]*$/, "") || file.name, options);
    if (!item) {
      notice("files", { text: t("files.too_many", { count: files.length - i, most: MOST_ITEMS }) });
      break;
    }
  }
  if (alone && item) await opened(item);
  else location.hash = "files";
}

/** Show the reader, which opens the sound too. */
async function opened(item) {
  await storing;
  location.hash = isGone(item) ? "files" : `t/${item.id}`;
}

/** A new transcript of the stored sound: the words of the old one may have been corrected. */
async function transcribeAgain({ id }) {
  const [transcript, sound] = [await store.get(id), await store.sound(id)];
  if (!transcript || !sound) return toast(t("files.sound_missing"));
  const name = transcript.media?.name ?? `${transcript.title}.wav`;
  const file = sound instanceof File ? sound : new File([sound], name, { type: sound.type });
  const item = await add(file, transcript.title, { language: "", hotwords: "", ...transcript.options });
  if (item) await opened(item);
}

/** The rest of a transcription that stopped, in the same transcript. */
async function goOn({ id, title, options, media }) {
  const before = queue.items.find((item) => item.id === id);
  if (before) return queue.retry(before);
  const sound = await store.sound(id);
  if (!sound) return toast(t("files.sound_missing"));
  if (queued(id, new File([sound], media.name, { type: media.type }), title, options)) await store.update(id, { state: "open", error: undefined });
}

async function add(file, title, options) {
  await store.open();
  const transcript = await store.create(described(file, title, options));
  const item = queued(transcript.id, file, title, options);
  if (item) keep(item);
  else await store.remove(transcript.id);
  return item;
}

function queued(id, file, title, options) {
  return queue.add({ id, name: file.name, file, title, options, kept: null, note: "", durationS: 0, seconds: 0, words: false, endMs: 0 });
}

/** Store the sound, so that it can be played, and transcribed again after a reload. */
function keep(item) {
  storing = storing.then(async () => {
    item.kept = await store.putSound(item.id, item.file);
    if (views.has(item)) show(item);
  });
}

/** The rest where one can be had; else a new transcript: the words of the old one may have been corrected. */
async function again(item) {
  const transcript = await store.get(item.id);
  if (transcript && reader.continues(transcript)) await store.update(item.id, { state: "open", error: undefined });
  else {
    const { id } = await store.create(described(item.file, item.title, item.options));
    Object.assign(item, { id, note: "" });
    keep(item);
  }
  queue.retry(item);
}

async function cancel(item) {
  const idle = item.state === "waiting";
  queue.cancel(item);
  // No work was begun that could close the transcript.
  if (idle) await giveUp(item, (await store.rows(item.id)).length, null);
}

function remove(item) {
  queue.remove(item);
  views.get(item)?.line.remove();
  views.delete(item);
  summarize();
}

/** The choice of a field that not every server has. */
function chosen(name) {
  return find(`files-${name}-field`).hidden ? "" : find(`files-${name}`).value;
}

function numberOption(count) {
  const option = new Option("", String(count));
  text(option, "files.speakers_count", { count });
  return option;
}

// -- what is shown ------------------------------------------------------------------------------------------------------

function changed(item) {
  show(item);
  reader.showWork(item.id);
  if (isGone(item) && location.hash === `#t/${item.id}`) location.hash = "files";
}

/** Whether it has failed or was cancelled without words, and has no transcript. */
function isGone(item) {
  return isOver(item) && !item.words;
}

function show(item) {
  const view = views.get(item) ?? made(item);
  const over = isOver(item);
  if (isGone(item)) view.name.removeAttribute("href");
  else view.name.href = `#t/${item.id}`;
  view.bar.hidden = over || item.state === "waiting";
  if (item.fraction === null) view.bar.removeAttribute("value");
  else view.bar.value = item.fraction;
  view.line.dataset.state = item.state;
  view.state.textContent = `${sizeOf(item.file.size)} · ${stateOf(item)}`;
  say(view.note, [item.problem?.text, item.note, item.kept === false ? t("files.not_kept") : ""].filter(Boolean).join(" "));
  view.cancel.hidden = over;
  view.retry.hidden = !over || item.state === "done";
  view.remove.hidden = !over;
  const labels = { cancel: "files.cancel", retry: "files.retry", remove: "files.remove" };
  for (const [name, label] of Object.entries(labels)) view[name].setAttribute("aria-label", t(label, { name: item.name }));
  summarize();
}

function made(item) {
  const button = (drawing) => make("button", { type: "button", className: "icon" }, icon(drawing));
  const view = {
    name: make("a", { className: "file-name", textContent: item.name, dir: "auto" }),
    state: make("span", { className: "facts" }),
    bar: make("progress", { max: 1 }),
    note: make("p", { className: "small", hidden: true }),
    cancel: button("close"),
    retry: button("retry"),
    remove: button("close"),
  };
  view.bar.setAttribute("aria-label", item.name);
  view.cancel.onclick = () => cancel(item);
  view.retry.onclick = () => again(item);
  view.remove.onclick = () => remove(item);
  view.line = make("li", {}, view.name, view.state, view.bar, view.note, make("span", { className: "buttons" }, view.retry, view.cancel, view.remove));
  views.set(item, view);
  find("files-queue").append(view.line);
  return view;
}

function stateOf(item) {
  const { state, fraction, seconds, durationS, untilMs, endMs } = item;
  if (state === "waiting" && untilMs) return t("files.waiting_server", { seconds: Math.max(1, Math.round((untilMs - Date.now()) / 1000)) });
  if (state === "uploading") return t("files.uploading", { percent: Math.floor(100 * fraction) });
  if (state !== "transcribing" || !seconds) return t(STATES[state]);
  if (!durationS) return t("files.transcribing_at", { time: clock(seconds) });
  const said = t("files.transcribing_of", { time: clock(seconds), length: clock(durationS) });
  const left = (endMs - Date.now()) / 1000;
  return left >= 1 ? `${said} · ${t("files.left", { time: timeOf(left) })}` : said;
}

/** What the reader shows of a transcript that this page works on: {said, fraction, cancel}; `fraction` is null if it is not known. */
function working(id) {
  const item = queue.items.find((one) => one.id === id && !isOver(one));
  return item && { said: [stateOf(item), model].filter(Boolean).join(" "), fraction: item.state === "waiting" ? 0 : item.fraction, cancel: () => cancel(item) };
}

function summarize() {
  const { items } = queue;
  find("files-work").hidden = !items.length;
  find("files-drop").classList.toggle("compact", items.length > 0);
  const count = (...states) => items.filter(({ state }) => states.includes(state)).length;
  const parts = [t("files.summary", { count: items.length, done: count("done") })];
  if (count("failed", "cut")) parts.push(t("files.summary_failed", { count: count("failed", "cut") }));
  say(find("files-summary"), parts.join(" · "));
  find("files-zip").hidden = !count("done", "cut");
  find("files-clear").hidden = !items.some(isOver);
  // Only while something waits for the model.
  if (queue.busy && !unwatch) unwatch = watch(showModel, 2);
  if (!queue.busy && unwatch) {
    unwatch();
    unwatch = null;
    showModel({ health: null });
  }
}

function showModel(state) {
  model = modelNote(state);
  say(find("files-model"), model);
  for (const { id } of queue.items) reader.showWork(id);
}

function showLimits() {
  if (!limits) return;
  const [unit, amount] = limits.audio_s % 3600 ? ["minute", Math.floor(limits.audio_s / 60)] : ["hour", limits.audio_s / 3600];
  const length = new Intl.NumberFormat(i18n.language, { style: "unit", unit, unitDisplay: "long" }).format(amount);
  find("files-limits").textContent = t("files.limits", { size: Math.round(limits.upload_bytes / MB), length });
}

async function saveZip(transcripts) {
  const { zipOf } = await import("./export.js");
  const all = await Promise.all(transcripts.map(async (transcript) => ({ transcript, rows: await inParagraphs(transcript, await store.rows(transcript.id)) })));
  save(`${t("files.zip_name")}.zip`, "application/zip", await zipOf(all, { words: wordings(), failed: ({ text }) => toast(text) }));
}

async function zipFinished({ target: button }) {
  button.disabled = true;
  const finished = queue.items.filter(({ state }) => state === "done" || state === "cut");
  const transcripts = await Promise.all(finished.map(({ id }) => store.get(id)));
  await saveZip(transcripts.filter(Boolean));
  button.disabled = false;
}

// -- transcriptions that ended with the page ------------------------------------------------------------------------------

async function interrupted() {
  await store.open();
  return (await store.list()).filter(({ kind, state, error }) => kind === "file" && state === "cut" && !error);
}

async function showInterrupted() {
  const found = await interrupted();
  find("files-interrupted").hidden = !found.length;
  find("files-interrupted-text").textContent = t("files.interrupted", { count: found.length });
}

async function leaveInterrupted() {
  for (const { id } of await interrupted()) await store.update(id, { error: { code: "interrupted", message: "" } });
  showInterrupted();
}

async function continueInterrupted() {
  const found = await interrupted();
  await leaveInterrupted();
  let lost = 0;
  for (const transcript of found.reverse()) {
    const { id, title, options, media } = transcript;
    const sound = await store.sound(id);
    if (!sound) lost++;
    else if (reader.continues(transcript)) await goOn(transcript);
    else if (!(await add(new File([sound], media.name, { type: media.type }), title, options))) break;
    else if (!(await store.rows(id)).length) await store.remove(id);
  }
  if (lost) toast(t("files.interrupted_lost", { count: lost }));
}

// -- drops ---------------------------------------------------------------------------------------------------------------

function catchDrops() {
  let inside = 0;
  const over = (depth) => {
    inside = depth;
    find("files-over").hidden = inside <= 0;
    text(find("files-over-text"), find("speak").hidden ? "files.drop_here" : "speak.drop_here");
  };
  // The whole page accepts files, whichever panel is shown: a file dropped elsewhere would replace the page.
  addEventListener("dragover", (event) => ours(event) && event.preventDefault());
  addEventListener("dragenter", (event) => event.dataTransfer.types.includes("Files") && over(inside + 1));
  addEventListener("dragleave", (event) => event.dataTransfer.types.includes("Files") && over(inside - 1));
  addEventListener("drop", (event) => {
    over(0);
    if (!ours(event)) return;
    event.preventDefault();
    droppedFiles(event.dataTransfer).then(dropped);
  });
}

/** A text is read aloud, all the rest is transcribed. */
function dropped(files) {
  const written = files.find(speech.isText);
  if (written) speech.takeFile(written);
  take(files.filter((file) => !speech.isText(file)));
}

/** Text dragged into a field is left to the browser. */
function ours(event) {
  return event.dataTransfer.types.includes("Files") || !event.target.matches?.("input, textarea, [contenteditable]");
}
