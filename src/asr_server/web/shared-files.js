// Recordings that another program shared with the installed page. The service worker keeps them until the page takes them.
//
// takeShared()  the files, once

const SHARED = "shared recordings"; // name of the cache

export async function takeShared() {
  // Only secure pages have caches.
  if (!globalThis.caches || !(await caches.has(SHARED))) return [];
  const cache = await caches.open(SHARED);
  const answers = await cache.matchAll();
  const files = await Promise.all(answers.map(asFile));
  await caches.delete(SHARED);
  return files;
}

async function asFile(answer) {
  const blob = await answer.blob();
  return new File([blob], decodeURIComponent(answer.headers.get("X-Name")), { type: blob.type });
}
