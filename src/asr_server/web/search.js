// Search in all transcripts of the store.

import { findAll } from "./transcript.js";

const SHOWN_ROWS = 3;

/** Transcripts whose title or rows hold `text`, newest first: [{transcript, rows}] with the first SHOWN_ROWS rows. */
export async function search(store, text, signal) {
  const found = [];
  for (const transcript of await store.list()) {
    const rows = (await store.rows(transcript.id)).filter((row) => findAll([row], text).length).slice(0, SHOWN_ROWS);
    if (signal?.aborted) return [];
    if (rows.length || findAll([{ n: 0, text: transcript.title }], text).length) found.push({ transcript, rows });
  }
  return found;
}
