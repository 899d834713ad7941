// The languages that can be chosen, by the codes the server takes. A test compares them with the server's table.

import { i18n } from "./i18n.js";

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

/** Offer only languages of these codes; a choice that is not among them becomes automatic. */
export function restrict(select, codes) {
  for (const option of select.options) option.disabled = option.hidden = option.value !== "" && !codes.includes(option.value);
  if (select.selectedOptions[0]?.disabled) select.value = "";
}

/** The name of a language in the language of the page; "" for a code that is not in the table. */
export function nameOf(code) {
  return code in LANGUAGES ? new Intl.DisplayNames([i18n.language], { type: "language" }).of(code) : "";
}

/** Put the languages, in the order of their names, behind the other options of a select; again in another language of the page. */
export function fill(select) {
  const chosen = select.value;
  const options = Object.keys(LANGUAGES).map((code) => [...select.options].find(({ value }) => value === code) ?? new Option("", code));
  for (const option of options) option.textContent = nameOf(option.value);
  options.sort((a, b) => a.textContent.localeCompare(b.textContent, i18n.language));
  select.append(...options);
  select.value = chosen;
}
