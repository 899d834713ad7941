// The files of a drop, those in folders included.

const MOST_FILES = 2000;
const DEEPEST = 8;
const RECORDING = /\.(wav|mp[23]|m4a|m4b|aac|e?ac3|dts|flac|wv|ogg|oga|opus|amr|aiff?|au|caf|wma|mp4|m4v|mov|mk[av]|webm|avi|asf|wmv|flv|3gp|mpe?g|vob|m?2?ts)$/i;

/** The files of a `DataTransfer`. Of a folder, those that look like recordings. To be called while the drop is handled. */
export async function droppedFiles(transfer) {
  // The browser empties the transfer when the handler of the event returns.
  const entries = [...transfer.items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const found = [];
  for (const entry of entries) await collect(entry, found, 0);
  return found;
}

async function collect(entry, found, depth) {
  if (!entry || found.length >= MOST_FILES) return;
  if (entry instanceof File) found.push(entry);
  else if (entry.isFile) {
    const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
    if (file && (depth === 0 || looksLikeRecording(file))) found.push(file);
  } else if (entry.isDirectory && depth < DEEPEST) {
    const reader = entry.createReader();
    // A folder is read in parts, until a part is empty.
    for (let part = [null]; part.length && found.length < MOST_FILES; ) {
      part = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
      for (const inner of part) await collect(inner, found, depth + 1);
    }
  }
}

export function looksLikeRecording({ name, type }) {
  return /^(audio|video)\//.test(type) || RECORDING.test(name);
}
