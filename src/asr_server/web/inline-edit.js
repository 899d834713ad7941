// A text that becomes a field where it stands: names of transcripts and speakers.

import { make } from "./dom.js";

/** Edit `value` in the place of `element`. Enter and leaving the field call `save(text)` if it changed, Escape does not. */
export function editInline(element, { value, label, save }) {
  const field = make("input", { type: "text", className: "inline-edit", value, maxLength: 200, dir: "auto" });
  field.setAttribute("aria-label", label);
  let over = false;
  const close = (keep) => {
    if (over) return;
    over = true;
    const text = field.value.trim();
    field.replaceWith(element);
    if (keep && text && text !== value) save(text);
  };
  field.onkeydown = (event) => {
    if (event.isComposing || event.keyCode === 229) return; // the keys of an input method
    event.stopPropagation();
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    close(event.key === "Enter");
    element.focus();
  };
  field.onblur = () => close(true);
  element.replaceWith(field);
  field.select();
  field.focus();
}
