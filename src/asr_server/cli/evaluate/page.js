// Plays the place of an error in the recording that it belongs to.
const player = document.getElementById("player");
const playing = document.getElementById("playing");
document.addEventListener("click", (event) => {
  const error = event.target.closest("button[data-start]");
  if (!error) return;
  const recording = error.closest("[data-audio]");
  if (player.getAttribute("src") !== recording.dataset.audio) player.src = recording.dataset.audio;
  playing.textContent = recording.dataset.name;
  // Before the browser knows the recording, this is where it will begin.
  player.currentTime = Math.max(0, Number(error.dataset.start) - 0.5);
  player.play().catch(() => {});
});
player.addEventListener("error", () => {
  playing.textContent += ": not found where the page looks for it, or in a format that this browser does not play";
});
