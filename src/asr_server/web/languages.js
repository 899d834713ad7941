// The languages that can be chosen, by the codes the server takes. A test compares them with the server's table.

import { i18n, text } from "./i18n.js";

export const LANGUAGES = {
  ar: "Arabic",
  yue: "Cantonese",
  zh: "Chinese",
  cs: "Czech",
  da: "Danish",
  nl: "Dutch",
  en: "English",
  fil: "Filipino",
  fi: "Finnish",
  fr: "French",
  de: "German",
  el: "Greek",
  hi: "Hindi",
  hu: "Hungarian",
  id: "Indonesian",
  it: "Italian",
  ja: "Japanese",
  ko: "Korean",
  mk: "Macedonian",
  ms: "Malay",
  fa: "Persian",
  pl: "Polish",
  pt: "Portuguese",
  ro: "Romanian",
  ru: "Russian",
  es: "Spanish",
  sv: "Swedish",
  th: "Thai",
  tr: "Turkish",
  vi: "Vietnamese",
};

/** [code, name] of each in the language of this tag, in its order. */
export function namedIn(tag) {
  const names = new Intl.DisplayNames([tag], { type: "language" });
  return Object.keys(LANGUAGES)
    .map((code) => [code, names.of(code)])
    .sort(([, a], [, b]) => a.localeCompare(b, tag));
}

/** Offer only languages of these codes; a choice that is not among them becomes automatic. A single language is named instead. */
export function restrict(select, codes) {
  const only = codes.length === 1 ? nameOf(codes[0]) : "";
  for (const option of select.options) option.disabled = option.hidden = option.value !== "" && (only || !codes.includes(option.value));
  text(select.options[0], only ? "live.only_language" : "live.any_language", { language: only });
  select.dataset.codes = codes.join(" ");
  if (select.selectedOptions[0]?.disabled) select.value = "";
}

/** {frequent, rare}: [code, name] of codes that engines of speech have, in the order of their names in the language `tag`.
 * Each name is given once; codes that the browser has no name for are left out. */
export function speechLanguages(codes, tag) {
  const names = new Intl.DisplayNames([tag], { type: "language", fallback: "none" });
  const ofName = new Map();
  // Where several codes have a name ("cmn", "zh"), the one of the table is kept.
  for (const code of [...codes.filter((one) => one in LANGUAGES), ...codes]) {
    const name = named(names, code);
    if (name && !ofName.has(name)) ofName.set(name, code);
  }
  const found = [...ofName].map(([name, code]) => [code, name]).sort(([, a], [, b]) => a.localeCompare(b, tag));
  const isFrequent = ([code]) => code in LANGUAGES || code === tag;
  return { frequent: found.filter(isFrequent), rare: found.filter((one) => !isFrequent(one)) };
}

/** Engines have names that are no language tags. */
function named(names, code) {
  try {
    return names.of(code);
  } catch {
    return undefined;
  }
}

/** The name of a language in the language of the page; "" for a code that is not in the table. */
export function nameOf(code) {
  return code in LANGUAGES ? new Intl.DisplayNames([i18n.language], { type: "language" }).of(code) : "";
}

/** Put the languages behind the first option of a select, and again when the language of the page changes. */
export function fill(select) {
  const show = () => {
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...namedIn(i18n.language).map(([code, name]) => new Option(name, code)));
    if (select.dataset.codes) restrict(select, select.dataset.codes.split(" "));
    select.value = chosen;
  };
  show();
  i18n.onchange(show);
}
