// The loudness of the last seconds as moving bars.

const BAR_S = 0.08;
const GAP = 0.45; // of a bar's place

/** The loudest value of each twelfth of a second, for the last `count` of them. */
export class LevelHistory {
  #bars;
  #loudest = 0;
  #seconds = 0;

  constructor(count) {
    this.#bars = new Float32Array(count);
  }

  /** Add `seconds` of sound of this level, 0 to 1. True if a bar was completed. */
  push(level, seconds) {
    this.#loudest = Math.max(this.#loudest, level);
    this.#seconds += seconds;
    if (this.#seconds < BAR_S) return false;
    this.#bars.copyWithin(0, 1);
    this.#bars[this.#bars.length - 1] = this.#loudest;
    this.#seconds %= BAR_S;
    this.#loudest = 0;
    return true;
  }

  clear() {
    this.#bars.fill(0);
    this.#loudest = this.#seconds = 0;
  }

  /** Oldest first. */
  get bars() {
    return this.#bars;
  }
}

/** Draw `history` over the whole canvas in its text colour. */
export function draw(canvas, history) {
  const scale = globalThis.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
  if (!width || !height) return; // the panel is not shown
  if (canvas.width !== Math.round(width)) canvas.width = Math.round(width);
  if (canvas.height !== Math.round(height)) canvas.height = Math.round(height);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = getComputedStyle(canvas).color;
  const place = canvas.width / history.bars.length;
  const bar = place * (1 - GAP);
  history.bars.forEach((level, i) => {
    const tall = Math.max(bar, level * canvas.height);
    context.beginPath();
    context.roundRect(i * place, (canvas.height - tall) / 2, bar, tall, bar / 2);
    context.fill();
  });
}
