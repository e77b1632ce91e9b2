// A canvas of pixels: maps with very many cells are drawn by writing them one by one, and only those that changed.

/** The colours of the present theme, as pixels. */
export function palette(names) {
  const probe = document.createElement('span');
  probe.hidden = true;
  document.body.append(probe);
  const colours = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    colours[name] = pixel(r, g, b);
  }
  probe.remove();
  return colours;
}

function pixel(r, g, b) {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** A pixel between two: `share` of `over`, and the rest of `under`. */
export function mix(under, over, share) {
  const part = (shift) => {
    const a = (under >>> shift) & 255;
    return Math.round(a + (((over >>> shift) & 255) - a) * share);
  };
  return pixel(part(0), part(8), part(16));
}

export class Pixels {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.width = this.height = 0;
  }

  /** In pixels of the device. All is `ground` then. */
  resize(width, height, ground) {
    this.canvas.width = width;
    this.canvas.height = height;
    this.canvas.style.height = `${height / devicePixelRatio}px`;
    this.width = width;
    this.height = height;
    this.image = this.context.createImageData(Math.max(1, width), Math.max(1, height));
    this.data = new Uint32Array(this.image.data.buffer);
    this.data.fill(ground);
    this.#touch(0, height);
  }

  #touch(from, to) {
    this.from = Math.min(this.from ?? from, from);
    this.to = Math.max(this.to ?? to, to);
  }

  fill(x, y, width, height, colour) {
    const { data } = this;
    for (let row = y; row < y + height; row += 1) {
      const start = row * this.width + x;
      data.fill(colour, start, start + width);
    }
    this.#touch(y, y + height);
  }

  /** Stripes that rise to the right, `thick` of each `period` pixels. They go on from one cell to the next. */
  stripes(x, y, width, height, colour, ground, thick, period) {
    for (let row = y; row < y + height; row += 1) {
      const start = row * this.width;
      for (let column = x; column < x + width; column += 1) {
        this.data[start + column] = (column + row) % period < thick ? colour : ground;
      }
    }
    this.#touch(y, y + height);
  }

  /** Shows what was drawn since the last call. */
  flush() {
    if (this.from === undefined) return;
    this.context.putImageData(this.image, 0, 0, 0, this.from, this.width, this.to - this.from);
    this.from = this.to = undefined;
  }
}
