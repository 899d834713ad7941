// The reader: one transcript at #t/ID, to listen to, read, search and correct.
//
// begin(), open(id), close()
// current()                the open {transcript, rows}, or null
// lookFor(query)           search for this when the next transcript is opened
// continues(transcript)    whether a transcription of a file that stopped can continue where it did
// showWork(id)             the work on this transcript has changed
// offer({again, resume, goOn, working})   other modules give what a transcription that was cut off or failed can get: again(transcript)
//                          transcribes the whole sound once more, resume(transcript) what is missing of a live recording, goOn(transcript)
//                          of a file. A function that is not given has no button. working(id) gives what is done now: {said, fraction, cancel}.
//
// Rows that arrive while the transcript is shown come through the store's `onchange`.

import { showCoverage, unheard } from "./coverage.js";
import { clock, find, say } from "./dom.js";
import { i18n, t, timeOf } from "./i18n.js";
import { editInline } from "./inline-edit.js";
import { nameOf } from "./languages.js";
import { mayGoOn } from "./live-recovery.js";
import { keepParagraphs } from "./paragraphs.js";
import { Player } from "./player.js";
import { Problem } from "./problem.js";
import { Finder } from "./reader-find.js";
import { beginKeys } from "./reader-keys.js";
import { beginPointer } from "./reader-pointer.js";
import { setTitle } from "./recording-mark.js";
import { RowEditor } from "./row-editor.js";
import { RowHistory } from "./row-history.js";
import { RowsView } from "./rows-view.js";
import { closeSpeakerMenu, openSpeakerMenu } from "./speaker-menu.js";
import { freeLetter, merged, speakerColour, withName } from "./speakers.js";
import { store } from "./store.js";
import { toast } from "./toast.js";
import { edited } from "./transcript.js";
import { Waveform, peaksOf } from "./waveform.js";
import { storage } from "./web-storage.js";

const KEPT_UNSURE = "mark-unsure";
const LOST_S = 600; // a text that another tab has overwritten is offered for so long
const WRITTEN_ROWS = 200; // in one transaction: more would take a long task

const kept = storage("localStorage");
const offers = { again: null, resume: null, goOn: null, working: null };
let player, waveform, view, editor, finder;
let transcript = null;
let rowsRead = null; // a promise: the rows of the transcript are in the view's history
const written = new WeakSet(); // rows that this reader has stored
let wanted = ""; // to search for in the next transcript
let turn = 0; // counts the transcripts that were opened
let leaving = new AbortController(); // ends what is computed for the transcript

export function offer(functions) {
  Object.assign(offers, functions);
}

export function lookFor(query) {
  wanted = query;
}

export function current() {
  return transcript && { transcript, rows: view.history.rows };
}

export function begin() {
  player = new Player(find("reader-player"), { time: follow, unplayable: noPlayer, loaded: drawPeaks });
  waveform = new Waveform(find("reader-waveform"), { seek: (seconds) => player.seek(seconds) });
  view = new RowsView(find("reader-rows"), { speaker: speakerMenu });
  view.unsure = kept.getItem(KEPT_UNSURE) === "true";
  editor = new RowEditor(find("reader-rows"), view, { draft, edit, lost: offerLost });
  finder = new Finder(view, { edit, replaced: (count) => toast(t("reader.replaced", { count }), { action: t("reader.undo"), run: undo }) });
  beginKeys({ player, view, editor, finder, undo, redo, playAt, isOpen: () => transcript !== null });
  beginPointer(find("reader-rows"), { player, view, editor, playAt });
  find("reader-undo").onclick = undo;
  find("reader-redo").onclick = redo;
  find("reader-search").onclick = () => finder.open();
  find("reader-rename").onclick = rename;
  find("reader-follow").onclick = () => setFollowing(true);
  find("reader-again").onclick = () => offers.again?.(transcript);
  find("reader-resume").onclick = () => (transcript.kind === "file" ? offers.goOn : offers.resume)?.(transcript);
  find("reader-cancel").onclick = () => offers.working?.(transcript.id)?.cancel();
  find("reader-unsure").checked = view.unsure;
  find("reader-unsure").onchange = (event) => {
    view.unsure = event.target.checked;
    kept.setItem(KEPT_UNSURE, String(view.unsure));
    view.paint();
  };
  // Who scrolls wants to read elsewhere.
  for (const name of ["wheel", "touchmove"]) find("reader").addEventListener(name, () => transcript && !player.paused && setFollowing(false), { passive: true });
  store.onchange(changed);
  i18n.onchange(() => transcript && open(transcript.id));
}

export async function open(id) {
  close();
  const mine = turn;
  await store.open();
  const found = await store.get(id);
  if (mine !== turn) return;
  say(find("reader-notice"), found ? "" : t("reader.missing"));
  find("reader-work").hidden = !found;
  find("reader-missing").hidden = Boolean(found);
  if (!found) return;
  transcript = found;
  view.history = new RowHistory();
  view.people = { ...found.speakers };
  setFollowing(true);
  showTranscript();
  rowsRead = store.rows(id).then((rows) => mine === turn && void view.history.apply({ put: rows }));
  await rowsRead;
  if (mine !== turn) return;
  const shown = view.showAll();
  showRows();
  openSound(await store.sound(id), mine);
  await shown;
  if (mine === turn && wanted) finder.open(wanted);
  wanted = "";
  if (mine === turn && !editor.open) await keepParagraphs(store, found);
}

export function close() {
  turn++;
  if (!transcript) return;
  editor.finish();
  finder.close();
  closeSpeakerMenu();
  leaving.abort();
  leaving = new AbortController();
  player.close();
  view.clear();
  waveform.show({ peaks: null, rows: [], gaps: [], durationS: 0 });
  transcript = null;
}

function openSound(sound, mine) {
  if (mine !== turn) return;
  showPlayer(Boolean(sound));
  say(find("reader-unplayable"), "");
  if (sound) player.open(sound, transcript.durationS || (view.history.rows.at(-1)?.end ?? 0));
}

function noPlayer() {
  showPlayer(false);
  say(find("reader-unplayable"), new Problem("unplayable").text);
}

function showPlayer(on) {
  find("reader-sound").hidden = !on;
  find("reader").classList.toggle("without-sound", !on);
  showHeard();
}

async function drawPeaks() {
  const mine = turn;
  waveform.show({ durationS: player.durationS });
  const { id, peaks: known } = transcript;
  const sound = await store.sound(id);
  const peaks = mine === turn && sound && (await peaksOf(sound, known, leaving.signal));
  if (mine === turn && peaks) waveform.show({ peaks });
}

// -- what is shown ----------------------------------------------------------------------------------------------------

function showTranscript() {
  find("reader-title").textContent = transcript.title || t("reader.untitled");
  setTitle(`${find("reader-title").textContent} · ${t("shell.title")}`);
  const { state, error } = transcript;
  const problem = error && new Problem(error.code, error.message);
  const said = { open: t("reader.open"), cut: stopped(problem), failed: problem?.text ?? t("reader.failed") }[state];
  if (state !== "open") say(find("reader-state-text"), said ?? "");
  find("reader-state").hidden = !said;
  find("reader-state").classList.toggle("notice", state !== "open");
  const ended = state === "cut" || state === "failed";
  find("reader-again").hidden = !(ended && offers.again);
  find("reader-resume").hidden = !((mayGoOn(transcript) && offers.resume) || (continues(transcript) && offers.goOn));
  find("reader-rows").setAttribute("aria-busy", String(state === "open"));
  showWork(transcript.id);
  showFacts();
}

/** Where a transcription of a file stopped, and why. */
function stopped(problem) {
  const { kind, error, durationS } = transcript;
  if (kind !== "file" || problem?.code === "incomplete") return t(kind === "file" ? "reader.parts_missing" : "reader.cut");
  const at = clock(view.history.rows.at(-1)?.end ?? 0);
  const place = durationS ? t("reader.position_of", { at, of: clock(durationS) }) : at;
  if (problem?.code === "deadline_exceeded" && error.limitS) return t("reader.stopped_limit", { place, limit: timeOf(error.limitS) });
  if (!problem || problem.code === "interrupted") return t("reader.stopped_closed", { place });
  return `${t("reader.stopped", { place })} ${problem.code === "cancelled" ? "" : problem.text}`.trim();
}

export function continues({ kind, state, error, options }) {
  return kind === "file" && state === "cut" && error?.code !== "incomplete" && !options.speakers;
}

export function showWork(id) {
  if (transcript?.id !== id) return;
  const work = transcript.state === "open" ? offers.working?.(id) : null;
  find("reader-progress").hidden = find("reader-cancel").hidden = !work;
  if (transcript.state === "open") say(find("reader-state-text"), work?.said || t("reader.open"));
  if (work?.fraction == null) find("reader-progress").removeAttribute("value");
  else find("reader-progress").value = work.fraction;
}

function showFacts() {
  const { rows } = view.history;
  const words = rows.reduce((sum, row) => sum + (row.words?.length ?? row.text.split(" ").length), 0);
  const length = transcript.durationS || (rows.at(-1)?.end ?? 0);
  const language = nameOf(transcript.languageCode) || transcript.language;
  const parts = [length ? clock(length) : "", language, t("reader.words", { count: words }), transcript.model];
  find("reader-facts").textContent = parts.filter(Boolean).join(" · ");
}

/** What follows from the rows as a whole. */
function showRows() {
  const { rows, canUndo, canRedo } = view.history;
  find("reader-undo").disabled = !canUndo;
  find("reader-redo").disabled = !canRedo;
  find("reader-unsure-field").hidden = !rows.some((row) => row.words?.some(({ confidence }) => confidence !== undefined));
  find("reader-rows").classList.toggle("two", rows.some((row) => row.translation));
  find("reader-empty").hidden = rows.length > 0 || transcript.state !== "complete";
  const style = getComputedStyle(find("reader"));
  const colour = (speaker) => speaker !== undefined && style.getPropertyValue(`--speaker-${speakerColour(speaker, view.people)}`);
  waveform.show({ rows, gaps: unheard(transcript), colour, durationS: player.durationS || transcript.durationS });
  showHeard();
  finder.refresh();
  showTranscript();
}

function showHeard() {
  showCoverage(transcript, player.durationS || transcript.durationS, find("reader-sound").hidden ? null : playAt);
}

function setFollowing(on) {
  view.following = on;
  find("reader-follow").hidden = on;
}

function follow(seconds) {
  if (!transcript) return;
  const row = view.mark(seconds);
  player.subtitle(row, seconds);
  waveform.at(seconds);
}

// -- changes ----------------------------------------------------------------------------------------------------------

let showing = 0;

async function put(change) {
  await view.update(change);
  // Once for all changes that arrive together.
  clearTimeout(showing);
  showing = setTimeout(() => transcript && showRows(), 100);
}

async function write({ remove, put: rows }) {
  const { id } = transcript;
  for (const row of rows) written.add(row);
  let removed = remove;
  for (let i = 0; i === 0 || i < rows.length; i += WRITTEN_ROWS) {
    await store.changeRows(id, removed, rows.slice(i, i + WRITTEN_ROWS));
    removed = [];
  }
}

function draft(change) {
  write(view.history.apply(change));
}

function edit(change, before) {
  return made(view.history.edit(change, before));
}

/** Another tab has changed the row `n` while this `text` was typed: the other one is shown, and this one is kept for the choice. */
function offerLost(n, text) {
  const { id } = transcript;
  const take = () => {
    const row = transcript?.id === id && view.history.row(n);
    if (row) edit({ put: [edited(row, text)] });
  };
  toast(t("reader.changed_elsewhere", { text }), { action: t("reader.use_mine"), run: take, seconds: LOST_S });
}

function undo() {
  editor.finish();
  made(view.history.undo());
}

function redo() {
  editor.finish();
  made(view.history.redo());
}

async function made(change) {
  if (!change) return;
  const shown = put(change);
  write(change);
  await shown;
}

async function changed({ type, id, here, removed, put: keys, rows }) {
  if (id !== transcript?.id) return;
  const mine = turn;
  if (type === "removed") return open(id);
  if (type === "transcript") {
    const found = await store.get(id);
    if (mine !== turn || !found) return;
    const ended = transcript.state === "open" && found.state !== "open";
    const renamed = JSON.stringify(transcript.speakers) !== JSON.stringify(found.speakers);
    transcript = found;
    if (renamed) {
      view.people = { ...found.speakers };
      view.showSpeakers();
    }
    // A recording had less sound, or none, when it was opened.
    if (ended && found.kind === "live" && player.paused) openSound(await store.sound(id), mine);
    if (ended && found.peaks) drawPeaks();
    showTranscript();
    if (found.state !== "open") showRows();
    if (ended && !editor.open) await keepParagraphs(store, found);
    return;
  }
  await rowsRead;
  const arrived = here ? rows : await store.rowsAt(id, keys);
  const news = arrived.filter((row) => !written.has(row));
  const gone = removed.filter((n) => view.history.row(n) && !keys.includes(n));
  if (mine !== turn || (!news.length && !gone.length)) return;
  editor.arrived(news);
  put(view.history.arrive({ remove: gone, put: news }));
}

function rename() {
  editInline(find("reader-title"), {
    value: transcript.title,
    label: t("reader.name"),
    save: (title) => store.update(transcript.id, { title }),
  });
}

function speakerMenu(row, button) {
  const { id } = transcript;
  const change = async (rows) => {
    await edit({ put: rows });
    view.speakerButton(row.n)?.focus({ preventScroll: true }); // the one that was pressed may have gone
  };
  const give = (speaker) => change([{ ...view.history.row(row.n), speaker, chosen: true }]);
  openSpeakerMenu(button, row.speaker, view.people, {
    rename: (speaker, name) => store.update(id, withName(view.people, speaker, name)),
    give,
    create() {
      const speaker = freeLetter(Object.keys(view.people));
      store.update(id, withName(view.people, speaker, ""));
      give(speaker);
    },
    merge(from, to) {
      change(merged(view.history.rows, from, to));
      toast(t("speakers.merged"), { action: t("reader.undo"), run: undo });
    },
  });
}

function playAt(seconds) {
  setFollowing(true);
  player.seek(seconds);
  player.play();
}
