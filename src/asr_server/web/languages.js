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

/** [code, name] of each in the language of this tag, in its order. */
export function namedIn(tag) {
  const names = new Intl.DisplayNames([tag], { type: "language" });
  return Object.keys(LANGUAGES)
    .map((code) => [code, names.of(code)])
    .sort(([, a], [, b]) => a.localeCompare(b, tag));
}

/** Offer only languages of these codes; a choice that is not among them becomes automatic. */
export function restrict(select, codes) {
  for (const option of select.options) option.disabled = option.hidden = option.value !== "" && !codes.includes(option.value);
  if (select.selectedOptions[0]?.disabled) select.value = "";
}

/** The name of a language in the language of the page; "" for a code that is not in the table. */
export function nameOf(code) {
  return code in LANGUAGES ? new Intl.DisplayNames([i18n.language], { type: "language" }).of(code) : "";
}

/** Put the languages behind the first option of a select, and again when the language of the page changes. */
export function fill(select) {
  const show = () => {
    const [chosen, kept] = [select.value, [...select.options].filter((option) => !option.disabled).map(({ value }) => value)];
    select.replaceChildren(select.options[0], ...namedIn(i18n.language).map(([code, name]) => new Option(name, code)));
    if (kept.length > 1) restrict(select, kept);
    select.value = chosen;
  };
  show();
  i18n.onchange(show);
}
