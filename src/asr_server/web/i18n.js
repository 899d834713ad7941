// The texts of the page in the reader's language.
//
// i18n.load()              fetch the messages of the chosen language, else of the browser's; await it before the first t()
// i18n.language            "en", "zh", ...: the language in use
// i18n.choose(code)        use this language from now on; "" follows the browser again
// i18n.onchange(listener)  called after the language changed, for texts that text() and data-t do not cover
// i18n.use(code, messages) use these messages, without fetching: for tests in Node
// t(key, values)           t("live.start"); {name} in a message is replaced by values.name; values.count chooses the plural
// text(element, key, values)  show t(key, values) in `element`, also after the language changes; key "" empties it
// sizeOf(bytes), timeOf(seconds)  a size and a length of time with their units
// name(element, key, ...attributes)  set attributes to t(key), also after the language changes
// apply(root)              fill data-t (text) and data-t-aria-label, data-t-title, data-t-placeholder below `root`

import { storage } from "./web-storage.js";

// Each in its own language, so that whoever reads it finds it.
export const LANGUAGES = { en: "English", zh: "中文", es: "Español", de: "Deutsch", fr: "Français", ja: "日本語", ar: "العربية" };
const RIGHT_TO_LEFT = new Set(["ar"]);
const KEPT = "language";
const ATTRIBUTES = ["aria-label", "title", "placeholder"];

const kept = storage("localStorage");
const changes = new EventTarget();
const valuesOf = new WeakMap(); // element -> the values of its data-t
let messages = {};
let numbers = new Intl.NumberFormat("en");
let plurals = new Intl.PluralRules("en");

export const i18n = {
  language: "en",

  /** The chosen code, or "" for the browser's language. */
  get chosen() {
    return kept.getItem(KEPT) ?? "";
  },

  async load() {
    const wanted = [i18n.chosen, ...navigator.languages].map((tag) => tag.split("-")[0]);
    const code = wanted.find((one) => one in LANGUAGES) ?? "en";
    i18n.use(code, await fetched(code));
    apply(document);
  },

  async choose(code) {
    if (code) kept.setItem(KEPT, code);
    else kept.removeItem(KEPT);
    await i18n.load();
    changes.dispatchEvent(new Event("change"));
  },

  onchange(listener) {
    changes.addEventListener("change", listener);
  },

  use(code, loaded) {
    i18n.language = code;
    messages = loaded;
    numbers = new Intl.NumberFormat(code);
    plurals = new Intl.PluralRules(code);
  },
};

async function fetched(code) {
  const answer = await fetch(new URL(`messages/${code}.json`, import.meta.url));
  if (!answer.ok) throw new Error(`messages/${code}.json: ${answer.status}`);
  return answer.json();
}

/** Seconds, or minutes from one on. */
export function timeOf(seconds) {
  const [unit, count] = seconds < 60 ? ["second", seconds] : ["minute", seconds / 60];
  return new Intl.NumberFormat(i18n.language, { style: "unit", unit, unitDisplay: "short", maximumFractionDigits: 0 }).format(count);
}

/** A size in bytes with its unit, of 1024, as the server counts. */
export function sizeOf(bytes) {
  const at = bytes < 1024 ? 0 : bytes < 1024 ** 2 ? 1 : bytes < 1024 ** 3 ? 2 : 3;
  const [count, unit] = [bytes / 1024 ** at, ["byte", "kilobyte", "megabyte", "gigabyte"][at]];
  return new Intl.NumberFormat(i18n.language, { style: "unit", unit, unitDisplay: at ? "short" : "narrow", maximumFractionDigits: at && count < 10 ? 1 : 0 }).format(count);
}

/** Whether there is a message of this key. */
export function known(key) {
  return found(key) !== undefined;
}

function found(key) {
  const [section, name] = key.split(".");
  return messages[section]?.[name];
}

export function t(key, values = {}) {
  let message = found(key);
  if (message === undefined) return key;
  if (typeof message === "object") message = message[plurals.select(values.count)] ?? message.other;
  return message.replace(/{(\w+)}/g, (whole, name) => {
    const value = values[name] ?? whole;
    const shown = typeof value === "number" ? numbers.format(value) : value;
    // A name or figure in the other direction would take its neighbours with it.
    return RIGHT_TO_LEFT.has(i18n.language) ? `\u2068${shown}\u2069` : shown;
  });
}

export function text(element, key, values = {}) {
  element.dataset.t = key;
  valuesOf.set(element, values);
  fill(element);
}

function fill(element) {
  const key = element.dataset.t;
  const shown = key ? t(key, valuesOf.get(element)) : "";
  // A live region is read out when it is touched.
  if (element.textContent !== shown) element.textContent = shown;
}

/** Set attributes ("aria-label", "title") to t(key), also after the language changes. */
export function name(element, key, ...attributes) {
  for (const one of attributes) {
    element.setAttribute(`data-t-${one}`, key);
    element.setAttribute(one, t(key));
  }
}

export function apply(root) {
  if (root === document) {
    document.documentElement.lang = i18n.language;
    document.documentElement.dir = RIGHT_TO_LEFT.has(i18n.language) ? "rtl" : "ltr";
  }
  for (const element of root.querySelectorAll("[data-t]")) fill(element);
  for (const name of ATTRIBUTES)
    for (const element of root.querySelectorAll(`[data-t-${name}]`)) element.setAttribute(name, t(element.getAttribute(`data-t-${name}`)));
}
