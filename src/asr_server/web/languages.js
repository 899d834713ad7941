// The languages that can be chosen, by the codes the server takes. A test compares them with the server's table.

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

/** Add the languages to a select that has its first option already. */
export function fill(select) {
  for (const [code, name] of Object.entries(LANGUAGES)) select.append(new Option(name, code));
}
