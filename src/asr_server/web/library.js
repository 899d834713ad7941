// The Transcripts panel: what this browser has stored, to search, rename, remove and take away.
//
// begin(), open(), close()
// offer({exportAll})   another module gives how all are taken away: exportAll([transcript]); without it there is no button

import { breathe, clock, find, icon, make, say } from "./dom.js";
import { i18n, t, text } from "./i18n.js";
import { editInline } from "./inline-edit.js";
import { nameOf } from "./languages.js";
import { notice } from "./notice.js";
import { Problem } from "./problem.js";
import { lookFor } from "./reader.js";
import { search } from "./search.js";
import { store } from "./store.js";
import { toast } from "./toast.js";
import { findAll } from "./transcript.js";

const STATES = { open: "library.open", cut: "library.cut", failed: "library.failed" };
const WAIT_MS = 200; // after a key or a change, until the list is made again
const MADE_AT_ONCE = 50; // items in one task
const BEFORE_HIT = 14; // characters of a line that are shown before what was found: a phone shows some thirty
const PREVIEW = 200; // characters of the first line

const offers = { exportAll: null };
let shown = false;
let timer = 0;
let searching = new AbortController();
let listed = []; // the transcripts that are shown

export function offer(functions) {
  Object.assign(offers, functions);
}

export function begin() {
  find("library-query").oninput = soon;
  find("library-remove-all").onclick = askToRemove;
  find("library-export").onclick = async () => offers.exportAll?.(await store.list());
  find("library-persist").onclick = async () => {
    if (!(await store.persist())) toast(t("library.persist_refused"));
    soon();
  };
  store.onchange(() => shown && soon());
  store.onproblem((code) => notice("transcripts", new Problem(code)));
  i18n.onchange(() => shown && show());
}

export function open() {
  shown = true;
  return show();
}

export function close() {
  shown = false;
  searching.abort();
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(show, WAIT_MS);
}

async function show() {
  searching.abort();
  const { signal } = (searching = new AbortController());
  await store.open();
  const query = find("library-query").value.trim();
  const all = await store.list();
  const found = query ? await search(store, query, signal) : all.map((transcript) => ({ transcript, rows: [] }));
  if (signal.aborted) return;
  listed = found.map(({ transcript }) => transcript);
  if (store.damaged) notice("transcripts", { text: t("library.damaged", { count: store.damaged }) });
  find("library-remove-all").hidden = !found.length;
  text(find("library-remove-all"), query ? "library.remove_found" : "library.remove_all", { count: found.length });
  find("library-memory").hidden = store.persistent;
  find("library-tools").hidden = !all.length;
  find("library-export").hidden = !offers.exportAll;
  find("transcripts-empty").hidden = all.length > 0;
  find("library-none").hidden = !all.length || found.length > 0;
  say(find("library-found"), query ? t("library.found", { count: found.length }) : "");
  find("transcripts-begin").hidden = all.length > 0;
  showUsage(all.length);
  const items = [];
  for (let i = 0; i < found.length; i++) {
    if (i && i % MADE_AT_ONCE === 0) await breathe();
    items.push(await itemOf(found[i], query));
    if (signal.aborted) return;
  }
  // A name that is being edited would be lost.
  if (!find("transcripts-list").contains(document.activeElement?.closest("input"))) refill(items);
}

/** The focus stays on the same transcript. */
function refill(items) {
  const list = find("transcripts-list");
  const focused = document.activeElement;
  const id = list.contains(focused) ? focused.closest("li").dataset.id : null;
  list.replaceChildren(...items);
  if (id !== null) items.find((item) => item.dataset.id === id)?.querySelector(focused.className ? `.${focused.classList[0]}` : "a")?.focus();
}

async function itemOf({ transcript, rows }, query) {
  const { id, createdAt, durationS, language, languageCode, state } = transcript;
  const title = transcript.title || t("reader.untitled");
  const link = make("a", { className: "library-title", href: `#t/${id}`, textContent: title, dir: "auto" });
  const date = new Date(createdAt).toLocaleString(i18n.language, { dateStyle: "medium", timeStyle: "short" });
  // The title of a live recording has its date.
  const facts = [title.includes(date) ? "" : date, durationS ? clock(durationS) : "", nameOf(languageCode) || language].filter(Boolean).join(" · ");
  const line = make("p", { className: "facts" }, facts);
  if (state !== "complete") line.append(make("span", { className: `library-state ${state}`, textContent: t(STATES[state]) }));
  const item = make("li", { className: "card library-item" }, make("div", { className: "library-text" }, link, line));
  item.dataset.id = id;
  item.firstChild.append(...rows.map((row) => snippet(id, row, query)));
  const first = rows.length ? null : await store.firstRow(id);
  if (first?.text) item.firstChild.append(make("p", { className: "library-snippet", textContent: first.text.slice(0, PREVIEW), dir: "auto" }));
  item.append(
    button("edit", "library.rename", title, () => rename(transcript, link)),
    button("trash", "library.remove", title, async () => removed(await store.remove(id), t("library.removed", { title }))),
  );
  return item;
}

/** A line from shortly before what was found in it; the reader opens with the same search. */
function snippet(id, row, query) {
  const { from, to } = findAll([row], query)[0];
  const far = from - BEFORE_HIT;
  const begin = far <= 0 ? 0 : far + row.text.slice(far, from).indexOf(" ") + 1;
  const shown = [begin ? "…" : "", row.text.slice(begin, from), make("mark", { textContent: row.text.slice(from, to) }), row.text.slice(to)];
  const link = make("a", { className: "library-snippet", href: `#t/${id}`, dir: "auto" }, make("span", { className: "time", textContent: clock(row.start) }), " ", ...shown);
  link.onclick = () => lookFor(query);
  return link;
}

function button(drawing, label, title, run) {
  const made = make("button", { type: "button", className: `library-${drawing} icon`, onclick: run, title: t(label, { title }) }, icon(drawing));
  made.setAttribute("aria-label", t(label, { title }));
  return made;
}

function rename({ id, title }, link) {
  editInline(link, { value: title, label: t("reader.name"), save: (text) => store.update(id, { title: text }) });
}

/** Name what will be deleted: all that is listed now, which under a search is only what was found. */
function askToRemove() {
  const named = listed;
  find("library-confirm-title").textContent = t("library.remove_ask", { count: named.length });
  find("library-confirm-names").textContent = named.map(({ title }) => title || t("reader.untitled")).join(" · ");
  find("library-confirm").returnValue = "";
  find("library-confirm").onclose = ({ target }) => target.returnValue && removeAll(named);
  find("library-confirm").showModal();
}

async function removeAll(named) {
  removed(await store.remove(...named.map(({ id }) => id)), t("library.removed_all", { count: named.length }));
}

function removed(undo, said) {
  toast(said, { action: t("library.undo"), run: undo });
}

async function showUsage(count) {
  const { usedBytes, quotaBytes, persisted } = await store.usage();
  const known = count > 0 && store.persistent;
  find("library-usage").textContent = known ? [t("library.usage"), usedBytes === null ? "" : size(usedBytes)].filter(Boolean).join(" · ") : "";
  find("library-persist").hidden = !known || persisted || quotaBytes === null;
}

function size(bytes) {
  const unit = bytes >= 1e9 ? "gigabyte" : "megabyte";
  const count = bytes / (bytes >= 1e9 ? 1e9 : 1e6);
  return new Intl.NumberFormat(i18n.language, { style: "unit", unit, maximumFractionDigits: count < 10 ? 1 : 0 }).format(count);
}
