// The service worker: the page without the server, and recordings that other programs share with it.
//
// The addresses of scripts contain the version of the page, so what is kept of them is never wrong. The page itself is asked
// for on every load and kept only for times without the server. A new version waits until the last page of the old one is
// closed; a new page beside an old worker gets its files from the server. Requests to the API pass by.

// No module, since not every browser takes modules here. These two are as in shared-files.js and manifest.webmanifest.
const SHARED = "shared recordings";
const SHARE_FIELD = "recordings";

const FILES = new URL(".", location.href).href; // web/VERSION/
const PAGE = new URL("../..", FILES).href;
const SHARE = new URL("share", PAGE).href;
const CACHE = `page ${FILES}`;
const KEPT = { cacheName: CACHE, ignoreVary: true }; // the answer is the same for every origin

addEventListener("install", (event) => event.waitUntil(keep()));
addEventListener("activate", (event) => event.waitUntil(Promise.all([forgetOthers(), clients.claim()])));
addEventListener("fetch", (event) => {
  const { method, mode, url } = event.request;
  if (method === "POST" && url === SHARE) event.respondWith(takeShared(event.request));
  else if (method !== "GET") return;
  else if (mode === "navigate" && url.split(/[?#]/)[0] === PAGE) event.respondWith(page(event.request));
  else if (url.startsWith(FILES)) event.respondWith(file(event.request));
});

async function keep() {
  const names = await (await fetch(`${FILES}files.json`)).json();
  const found = await fetch(PAGE, { cache: "no-store" });
  // The server may have been updated since this worker was registered.
  if (!(await found.clone().text()).includes(FILES.slice(PAGE.length))) throw new Error("not this version's page");
  const cache = await caches.open(CACHE);
  await cache.put(PAGE, found);
  await cache.addAll(names.map((name) => FILES + name));
}

async function forgetOthers() {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(`page ${PAGE}`) && name !== CACHE).map((name) => caches.delete(name)));
}

async function page(request) {
  try {
    return await fetch(request);
  } catch {
    return (await caches.match(PAGE, KEPT)) ?? Response.error();
  }
}

async function file(request) {
  return (await caches.match(request, KEPT)) ?? fetch(request);
}

/** Keep the files for the page, which takes them when it opens. */
async function takeShared(request) {
  const files = (await request.formData()).getAll(SHARE_FIELD).filter((one) => one instanceof File && one.size);
  const cache = await caches.open(SHARED);
  for (const [at, one] of files.entries())
    await cache.put(`${SHARE}/${at}`, new Response(one, { headers: { "Content-Type": one.type, "X-Name": encodeURIComponent(one.name) } }));
  return Response.redirect(`${PAGE}#files`, 303);
}
