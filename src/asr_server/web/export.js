// Transcripts as files: text, subtitles, Markdown, Word, tables, JSON, and all of them in a zip.
//
// `exported(format, transcript, rows, options)` resolves to {name, type, bytes} or {name, type, text}, and rejects with a `Problem` where the
// server writes the file and cannot. `rows` are paragraphs. `options`: {translation: "none" | "both" | "only", words: {speaker(id), cut}}: which
// text of rows with a translation is written, and texts in the language of the page.

import { postForFile } from "./api.js";
import { clock } from "./dom.js";
import { cuesOf, pieces, srt, vtt } from "./subtitles.js";
import { together } from "./transcript.js";
import { Zip, ZipDeflate, strToU8 } from "./vendor/fflate.js";

const NAME_LENGTH = 100;
const DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";

/** The formats in the order of the menu. `label` is the key of a message. */
export const formats = [
  { id: "txt", ending: "txt", type: "text/plain", label: "export.txt", write: (t) => paragraphsAsText(t, false) },
  { id: "txt-times", ending: "times.txt", type: "text/plain", label: "export.txt_times", write: (t) => paragraphsAsText(t, true) },
  { id: "srt", ending: "srt", type: "application/x-subrip", label: "export.srt", write: (t) => srt(subtitles(t)) },
  { id: "vtt", ending: "vtt", type: "text/vtt", label: "export.vtt", write: (t) => vtt(subtitles(t, { voices: true })) },
  { id: "docx", ending: "docx", type: DOCX, label: "export.docx", write: (t) => written("docx", t) },
  { id: "md", ending: "md", type: "text/markdown", label: "export.md", write: (t) => written("markdown", t) },
  { id: "csv", ending: "csv", type: "text/csv", label: "export.csv", write: csv },
  { id: "json", ending: "json", type: "application/json", label: "export.json", write: json },
];

export async function exported(format, transcript, rows, options = {}) {
  const { ending, type, write } = formats.find(({ id }) => id === format);
  const content = await write({ transcript, rows: chosen(rows, options.translation ?? "none"), words: wordings(options) });
  const file = { name: `${fileName(transcript.title)}.${ending}`, type };
  return typeof content === "string" ? { ...file, text: content } : { ...file, bytes: content };
}

/** A zip with the files of several transcripts: [{transcript, rows}]. `ids` are formats. Several formats of several
 * transcripts have a folder for each transcript. A file that the server cannot write is left out, and `options.failed(problem)` told. */
export async function zipOf(transcripts, options = {}, ids = ["txt", "srt", "docx", "json"]) {
  const parts = [];
  const zip = new Zip((error, part) => {
    if (error) throw error;
    parts.push(part);
  });
  const taken = new Set();
  for (const { transcript, rows } of transcripts) {
    const folder = unique(fileName(transcript.title), taken);
    for (const id of ids) {
      const file = await exported(id, { ...transcript, title: folder }, rows, options).catch((problem) => options.failed?.(problem));
      if (!file) continue;
      const entry = new ZipDeflate(transcripts.length > 1 && ids.length > 1 ? `${folder}/${file.name}` : file.name, { level: 6 });
      entry.mtime = new Date(Math.max(transcript.changedAt, Date.UTC(1980, 0, 2)));
      zip.add(entry);
      entry.push(file.bytes ?? strToU8(file.text), true);
      // The page must answer to people between two files.
      await new Promise((resume) => setTimeout(resume));
    }
  }
  zip.end();
  return new Blob(parts, { type: "application/zip" });
}

/** A title as the name of a file on every system. */
export function fileName(title) {
  const plain = title.replace(/\.[\p{L}\p{N}]{2,4}$/u, "").replaceAll(/[\\/:*?"<>|\p{Cc}\p{Cs}]/gu, "_");
  const name = [...plain].slice(0, NAME_LENGTH).join("").replaceAll(/^[\s.]+|[\s.]+$/g, "");
  return /^(con|prn|aux|nul|com\d|lpt\d)$/i.test(name) ? `_${name}` : name || "transcript";
}

function unique(name, taken) {
  let found = name;
  for (let n = 2; taken.has(found.toLowerCase()); n++) found = `${name} (${n})`;
  taken.add(found.toLowerCase());
  return found;
}

function wordings({ words = {} }) {
  return { speaker: words.speaker ?? ((id) => id), cut: words.cut ?? "" };
}

function chosen(rows, translation) {
  if (translation === "only") return rows.map((row) => (row.translation ? { ...row, text: row.translation, words: undefined, translation: undefined } : row));
  return translation === "both" ? rows : rows.map((row) => (row.translation ? { ...row, translation: undefined } : row));
}

function speakerOf({ transcript, words }, id) {
  return id === undefined ? "" : transcript.speakers?.[id] || words.speaker(id);
}

/** Date, length and language. */
function facts({ transcript }) {
  const { createdAt, durationS, language } = transcript;
  return [new Date(createdAt).toISOString().slice(0, 10), clock(durationS), language].filter(Boolean);
}

/** The note about a text that was cut off; "" for a complete one. */
function cutNote({ transcript, rows, words }) {
  const cut = transcript.state === "cut" || transcript.state === "failed" || rows.some((row) => row.complete === false);
  return cut ? words.cut : "";
}

function paragraphsAsText(t, times) {
  const parts = t.rows.map(({ start, speaker, text, translation }) => {
    const name = speakerOf(t, speaker);
    const lead = `${times ? `[${clock(start)}] ` : ""}${name ? `${name}: ` : ""}`;
    return [lead + text, translation].filter(Boolean).join("\n");
  });
  if (cutNote(t)) parts.push(`[${cutNote(t)}]`);
  return parts.length ? `${parts.join("\n\n")}\n` : "";
}

/** A file that the server writes. */
function written(format, t) {
  const { title } = t.transcript;
  const segments = t.rows.map(({ start, end, text, translation, speaker }) => ({ start, end, text, translation, speaker: speakerOf(t, speaker) || undefined }));
  return postForFile("v1/text/documents", { format, title, facts: facts(t).join(" · "), note: cutNote(t), segments, joined: true });
}

/** The cues of all rows. `voices`: each has its speaker as `voice`; otherwise the name stands before the text where the speaker
 * changes. */
function subtitles(t, { voices = false } = {}) {
  let last;
  const spoken = t.rows.map((row) => {
    const speaker = speakerOf(t, row.speaker);
    const changes = row.speaker !== last;
    last = row.speaker;
    if (voices) return { ...row, voice: speaker };
    return speaker && changes ? led(row, `${speaker}: `) : row;
  });
  const cut = spoken.flatMap((row) => withTranslation(row, cuesOf([row])).map((cue) => ({ ...cue, voice: row.voice })));
  // Cues of neighbouring rows may overlap where speakers do.
  return cut.map((c, i) => ({ ...c, end: cut[i + 1]?.start > c.start ? Math.min(c.end, cut[i + 1].start) : c.end }));
}

/** A row with a name before its text, which takes room and no time. */
function led(row, lead) {
  const { start } = row;
  return { ...row, text: lead + row.text, words: [{ text: lead, start, end: start }, ...pieces(row)] };
}

/** The cues of a row with its translation below: each word of that goes to the cue of its estimated time. */
function withTranslation({ start, end, translation }, cues) {
  const texts = cues.map(() => "");
  for (const piece of translation ? pieces({ start, end, text: translation }) : []) {
    const middle = (piece.start + piece.end) / 2;
    const at = cues.findIndex((c) => middle < c.end);
    texts[at < 0 ? cues.length - 1 : at] += piece.text;
  }
  return cues.map((c, i) => ({ ...c, text: [c.text, texts[i].replaceAll(/\s+/g, " ").trim()].filter(Boolean).join("\n") }));
}

function csv(t) {
  const translated = t.rows.some((row) => row.translation);
  const head = ["start", "end", "speaker", "text", ...(translated ? ["translation"] : [])];
  const lines = t.rows.map((row) => {
    const cells = [row.start.toFixed(3), row.end.toFixed(3), cell(speakerOf(t, row.speaker)), cell(row.text)];
    return translated ? [...cells, cell(row.translation ?? "")] : cells;
  });
  // The mark at the beginning tells spreadsheets that this is UTF-8.
  return `\ufeff${[head, ...lines].map((line) => line.join(",")).join("\r\n")}\r\n`;
}

/** A text that no spreadsheet takes for a formula: an apostrophe stands before it (OWASP, CSV injection). */
function cell(text) {
  const safe = /^\s*[=+\-@＝＋－＠]|^[\t\r\n]/u.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

function json(t) {
  const { title, createdAt, durationS, language, languageCode, model, state, gaps, coverage } = t.transcript;
  const segments = t.rows.map(({ start, end, text, words, speaker, translation, complete }) => ({
    start,
    end,
    text,
    complete: complete !== false,
    speaker: speaker === undefined ? undefined : speakerOf(t, speaker),
    translation,
    words: words?.map((word) => ({ word: word.text.trim(), start: word.start, end: word.end, confidence: word.confidence })),
  }));
  const content = {
    title,
    created_at: new Date(createdAt).toISOString(),
    duration: durationS,
    language,
    language_code: languageCode,
    model,
    state,
    gaps,
    coverage,
    text: t.rows.reduce((all, row) => together(all, row.text), ""),
    segments,
  };
  return `${JSON.stringify(content, null, 2)}\n`;
}
