// The browser's small storages.
//
// storage("sessionStorage" | "localStorage")  with getItem, setItem, removeItem

/** Where the browser allows no storage, the page's own memory, which ends with a reload. */
export function storage(name) {
  try {
    return globalThis[name] ?? memory();
  } catch {
    return memory();
  }
}

function memory() {
  const values = new Map();
  return { getItem: (name) => values.get(name), setItem: (name, value) => values.set(name, value), removeItem: (name) => values.delete(name) };
}
