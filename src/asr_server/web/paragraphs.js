// Rows of a transcript joined to paragraphs, which the server finds: it knows where sentences end in every script.
//
// inParagraphs(transcript, rows)   the rows joined; as they are where that is done, and where the server does not answer
// keepParagraphs(store, transcript)   the same in the store, once for each transcript that is complete

import { postJson } from "./api.js";
import { mayGoOn } from "./live-recovery.js";
import { joined } from "./transcript.js";

const WRITTEN = 50; // paragraphs in one transaction: more would take a long task

export async function inParagraphs(transcript, rows) {
  const groups = await grouped(transcript, rows);
  return groups?.map((group) => group.reduce(joined)) ?? rows;
}

export async function keepParagraphs(store, transcript) {
  const { id, state, paragraphs } = transcript;
  // A recording that may go on drops the rows behind its last final line.
  if (paragraphs || state === "open" || mayGoOn(transcript)) return;
  const rows = await store.rows(id);
  const groups = await grouped(transcript, rows);
  if (!groups) return;
  // Translations that are still missing are on their way to their rows.
  const translated = transcript.translated || rows.some((row) => row.translation);
  const whole = groups.filter((group) => !translated || group.every((row) => row.translation));
  const several = whole.filter((group) => group.length > 1);
  for (let at = 0; at < several.length; at += WRITTEN) await write(store, id, several.slice(at, at + WRITTEN));
  if (whole.length === groups.length) await store.update(id, { paragraphs: true });
}

async function grouped({ paragraphs, languageCode }, rows) {
  if (paragraphs || !rows.length) return null;
  const segments = rows.map(({ start, end, text, speaker }) => ({ start, end, text, speaker }));
  try {
    const found = await postJson("v1/text/documents", { segments, language: languageCode });
    return found.paragraphs.map(({ first_segment: first, last_segment: last }) => rows.slice(first, last + 1));
  } catch {
    return null; // the rows can be read, too
  }
}

async function write(store, id, groups) {
  const now = new Map((await store.rowsAt(id, groups.flat().map(({ n }) => n))).map((row) => [row.n, row.text]));
  // A row may have been corrected meanwhile.
  const same = groups.filter((group) => group.every(({ n, text }) => now.get(n) === text));
  const gone = same.flatMap(([, ...rest]) => rest.map(({ n }) => n));
  await store.changeRows(id, gone, same.map((group) => group.reduce(joined)));
}
