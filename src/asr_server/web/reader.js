// The reader: one transcript, at #t/ID.
//
// open(id)

import { find } from "./dom.js";
import { text } from "./i18n.js";

/** Nothing is stored yet, so no id is known. */
export function open() {
  text(find("reader-notice"), "reader.missing");
  find("reader-notice").hidden = false;
}
