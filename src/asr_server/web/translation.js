// Translations of the rows of a transcript through the server, in batches.

import { postJson } from "./api.js";

const BATCH = 50;
const LONGEST = 2000; // characters of a text that the server takes
// Texts with these reasons belong into the column of translations unchanged.
const AS_IT_IS = new Set(["", "same_language", "no_words"]);

/** Translate all rows of a transcript of `store` into `target`, a language's name or tag, and write each batch into the rows.
 * `progress(fraction)`. Rejects with a `Problem`; what was written before stays. Returns how many rows have no translation. */
export async function translateTranscript(store, id, target, { source = "", signal, progress = () => {} } = {}) {
  const rows = (await store.rows(id)).filter(({ text }) => text.trim());
  const wanted = rows.filter(({ text }) => text.length <= LONGEST);
  let missing = rows.length - wanted.length;
  for (let at = 0; at < wanted.length; at += BATCH) {
    signal?.throwIfAborted();
    progress(at / wanted.length);
    const batch = wanted.slice(at, at + BATCH);
    const texts = batch.map(({ text }) => text);
    const { translations, reasons } = await postJson("v1/text/translations", { texts, target_language: target, source_language: source });
    // Rows may have been edited meanwhile.
    const now = new Map((await store.rows(id)).map((row) => [row.n, row]));
    const found = batch.flatMap(({ n, text }, i) => {
      const row = now.get(n);
      if (row?.text !== text || !AS_IT_IS.has(reasons[i])) return [];
      return [{ ...row, translation: translations[i] }];
    });
    missing += batch.length - found.length;
    await store.putRows(id, found);
  }
  return missing;
}
