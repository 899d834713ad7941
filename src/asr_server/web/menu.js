// Menus of commands: popovers of the class "menu" beside a button.

const EDGE = 8; // pixels between the menu and the window

/** Below the button, or above it where there is more room. */
export function place(menu, button) {
  const [own, at] = [menu.getBoundingClientRect(), button.getBoundingClientRect()];
  const below = innerHeight - at.bottom - EDGE >= own.height || innerHeight - at.bottom > at.top;
  // A button on the right has its menu to the left, away from the scroll bar.
  const left = at.left + at.right > innerWidth ? at.right - own.width : at.left;
  menu.style.left = `${Math.max(EDGE, Math.min(left, innerWidth - own.width - EDGE))}px`;
  menu.style.top = below ? `${at.bottom + 4}px` : "auto";
  menu.style.bottom = below ? "auto" : `${innerHeight - at.top + 4}px`;
  menu.style.maxHeight = `${(below ? innerHeight - at.bottom : at.top) - EDGE - 4}px`;
}

/** Arrow keys go through the commands and a field. */
export function moveIn(menu, event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const commands = [...menu.querySelectorAll("button, input")];
  const at = commands.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  commands.at((at + step) % commands.length).focus();
}
