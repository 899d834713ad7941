// The message at the head of a panel.
//
// notice(panel, problem)   show a Problem at the head of `panel`; null removes it
// dismiss(code)            remove the notices with this code from all panels

import { find, say } from "./dom.js";

export function notice(panel, problem) {
  const element = find(`${panel}-notice`);
  say(element, problem ? (problem.text ?? String(problem)) : "");
  element.dataset.code = problem?.code ?? "";
}

export function dismiss(code) {
  for (const element of document.querySelectorAll(`.notice[data-code="${code}"]`)) notice(element.id.replace(/-notice$/, ""), null);
}
