// One file to a transcript in the store: its sound is uploaded, and each row is written when it arrives.

import { get } from "./api.js";
import { hasOption } from "./health.js";
import { t } from "./i18n.js";
import { Problem } from "./problem.js";
import { store } from "./store.js";
import { Writer, spoken } from "./transcript-writer.js";
import { translateTranscript } from "./translation.js";
import { stream } from "./upload.js";

export const MB = 1024 ** 2; // as the server counts
const FORM_BYTES = 64 * 1024; // of a request beside the recording

/** Metadata of the transcript of a file. */
export function described(file, title, options) {
  const media = { name: file.name, type: file.type, size: file.size, kind: "file", playable: canPlay(file.type) };
  return { title, kind: "file", state: "open", options, media };
}

/** The work of an item {id, file, options} of the queue. Resolves to "done", or to "cut" where the text is not whole. */
export async function transcribe(item, signal, report) {
  const rows = await store.rows(item.id); // of an earlier try: this one continues after them
  const start = continuedAt(rows);
  let count = rows.length;
  let health = null;
  try {
    report({ state: "preparing", seconds: start, words: count > 0 });
    health = await get("health");
    const { soundTrack } = await import("./sound-track.js");
    const sound = (await soundTrack(item.file, { signal })) ?? item.file;
    signal.throwIfAborted();
    const { upload_bytes: limit } = health.limits;
    if (sound.size + FORM_BYTES > limit) throw new Problem("file_too_large", t("files.limit_size", { size: Math.round(limit / MB) }));
    await store.update(item.id, { state: "open", error: undefined, coverage: undefined, paragraphs: undefined, model: health.model_id });
    const whole = await received(item, sound, { ...fieldsOf(item.options, health), start }, { rows, signal, report, counted: (more) => (count += more) });
    const end = whole.complete ? { state: "complete" } : { state: "cut", error: { code: "incomplete", message: "" } };
    if (!count) throw new Problem("no_speech");
    const { coverage, peaks } = whole;
    await store.update(item.id, { ...end, durationS: whole.duration, coverage, peaks, ...(rows.length ? {} : spoken(whole.language)) });
    if (item.options.target) await translate(item, signal, report);
    return whole.complete ? "done" : "cut";
  } catch (problem) {
    // It is tried again soon.
    if (problem.retryAfterS && !signal.aborted) throw problem;
    await giveUp(item, count, signal.aborted ? null : problem, health?.limits.request_s);
    throw problem;
  }
}

/** Close the transcript of an item that ended early: what there is stays, and one without words is removed. */
export async function giveUp(item, count, problem, limitS) {
  if (!count) await store.remove(item.id);
  else if (problem) await store.update(item.id, { state: "cut", error: { code: problem.code ?? "internal_error", message: problem.said ?? "", limitS } });
  else await store.update(item.id, { state: "cut", error: { code: "cancelled", message: "" } });
}

/** The second from which a transcript with these rows continues: the server leaves out what begins before their last word. */
export function continuedAt(rows) {
  return Math.max(0, ...rows.map(({ end }) => end));
}

/** The answer of the server; the rows are written on the way. */
async function received(item, sound, fields, { rows, signal, report, counted }) {
  const from = fields.start;
  let [duration, done, begunMs] = [0, from, 0];
  const writer = new Writer(store, item.id, rows);
  const started = stream(sound, fields, {
    sent: (fraction) => report(fraction < 1 ? { state: "uploading", fraction } : { state: "transcribing", fraction: null, seconds: from }),
    duration: (seconds) => {
      duration = seconds;
      begunMs = Date.now();
      report({ durationS: seconds });
      writer.update({ durationS: seconds });
    },
    segment: (segment) => {
      const more = writer.segment(segment);
      counted(more);
      if (more) report({ words: true });
      // Speakers come once more from the beginning on.
      done = Math.max(done, segment.end);
      const endMs = Date.now() + ((Date.now() - begunMs) / (done - from)) * (duration - done); // at the speed so far
      report({ state: "transcribing", fraction: duration ? Math.min(1, done / duration) : null, seconds: done, endMs });
    },
  });
  const abort = () => started.abort();
  signal.addEventListener("abort", abort, { once: true });
  try {
    return await started.done;
  } finally {
    signal.removeEventListener("abort", abort);
    await writer.close();
  }
}

/** The fields of the form. `speakers` of the options: "" does not tell them apart, else their number, or "auto". */
export function fieldsOf({ language, hotwords, speakers = "" }, health) {
  const fields = { language, hotwords, return_timestamps: "true", mode: hasOption(health, "aligner") ? "accurate" : "fast" };
  // The transcript may come from another server.
  if (!speakers || !hasOption(health, "speakers")) return fields;
  return { ...fields, speakers: "true", num_speakers: speakers === "auto" ? "" : speakers };
}

/** A failed translation leaves the transcript as it is: the item tells of it, and the export menu translates again. */
async function translate(item, signal, report) {
  report({ state: "translating", fraction: 0 });
  try {
    const missing = await translateTranscript(store, item.id, item.options.target, { signal, progress: (fraction) => report({ fraction }) });
    report({ note: missing ? t("files.translated_partly", { count: missing }) : "" });
  } catch (problem) {
    if (!signal.aborted) report({ note: `${t("files.translation_failed")} ${problem.text ?? ""}`.trim() });
  }
}

function canPlay(type) {
  return !type || document.createElement(type.startsWith("video/") ? "video" : "audio").canPlayType(type) !== "";
}
