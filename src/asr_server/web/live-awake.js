// Keeps the screen on during a recording, since a phone that sleeps stops recording. Not every browser can do this.

let lock = null;
let wanted = false;

/** The browser ends the lock when the page is hidden; call this again when it is shown. */
export async function keepAwake(recording) {
  wanted = recording;
  if (!wanted) {
    lock?.release();
    lock = null;
  } else if (!document.hidden && navigator.wakeLock && lock?.released !== false) {
    lock = await navigator.wakeLock.request("screen").catch(() => null);
    if (!wanted) keepAwake(false);
  }
}
