// Plays the place of an error in the recording that it belongs to.
const player = document.getElementById("player");
const playing = document.getElementById("playing");
let start = 0;
const seek = () => { player.currentTime = start; };
document.addEventListener("click", (event) => {
  const error = event.target.closest("button[data-start]");
  if (!error) return;
  const recording = error.closest("[data-audio]");
  start = Math.max(0, Number(error.dataset.start) - 0.5);
  playing.textContent = recording.dataset.name;
  // A recording that is not loaded yet has no places: it is sought when its length is known, before it plays.
  if (player.getAttribute("src") === recording.dataset.audio) seek();
  else player.src = recording.dataset.audio;
  player.play().catch(() => {});
});
player.addEventListener("loadedmetadata", seek);
player.addEventListener("error", () => {
  playing.textContent += ": not found where the page looks for it, or in a format that this browser does not play";
});
