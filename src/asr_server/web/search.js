// Search in all transcripts of the store.

const SHOWN_ROWS = 3;

/** Transcripts whose title or rows hold `text`, newest first: [{transcript, rows}] with the first SHOWN_ROWS rows. */
export async function search(store, text, signal) {
  const wanted = folded(text);
  const found = [];
  for (const transcript of await store.list()) {
    const rows = (await store.rows(transcript.id)).filter((row) => folded(row.text).includes(wanted)).slice(0, SHOWN_ROWS);
    if (signal?.aborted) return [];
    if (rows.length || folded(transcript.title).includes(wanted)) found.push({ transcript, rows });
  }
  return found;
}

/** Case and the kind of blanks do not count. */
function folded(text) {
  return text.toLocaleLowerCase().replaceAll(/\s+/gu, " ").trim();
}
