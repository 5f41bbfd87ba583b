// A heat map on a canvas with a cursor (mouse, touch, arrow keys) and selectable cells.
const DIVERGING = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582",
  "#d6604d", "#b2182b", "#67001f"];
const GREENS = ["#f7fcf5", "#c7e9c0", "#74c476", "#238b45", "#00441b"];
const UNSEEN = [236, 236, 236];

// The color [red, green, blue] of `part`, from 0 to 1, on a color scale.
function colorOf(scale, part) {
  const place = Math.min(1, Math.max(0, part)) * (scale.length - 1);
  const low = Math.min(Math.floor(place), scale.length - 2);
  const channel = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return [0, 1, 2].map((i) => {
    const [a, b] = [channel(scale[low], i), channel(scale[low + 1], i)];
    return Math.round(a + (b - a) * (place - low));
  });
}

class Grid {
  // `options`: size (rows and columns), first (number of the first row), across and down (axis labels),
  // move(row, column) when the cursor moves, pick(row, column) when a cell is chosen.
  constructor(canvas, options) {
    Object.assign(this, options);
    this.canvas = canvas;
    this.cursor = null;
    this.marks = {};
    this.image = document.createElement("canvas");
    this.image.width = this.image.height = this.size;
    canvas.addEventListener("pointermove", (event) => this.at(event, this.move));
    canvas.addEventListener("click", (event) => this.at(event, this.pick));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.paint());
    canvas.addEventListener("blur", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(canvas);
  }

  // Draws the cells; `color(row, column)` is null for empty cells.
  show(color) {
    const pixels = new ImageData(this.size, this.size);
    for (let row = 0; row < this.size; row++) {
      for (let column = 0; column < this.size; column++) {
        const rgb = color(row, column);
        if (rgb) pixels.data.set([...rgb, 255], 4 * (row * this.size + column));
      }
    }
    this.image.getContext("2d").putImageData(pixels, 0, 0);
    this.paint();
  }

  // Layout of the cells in CSS pixels.
  frame() {
    const left = 44, top = 6, side = Math.max(1, this.canvas.clientWidth - left - 6);
    return { left, top, side, cell: side / this.size };
  }

  paint() {
    const { left, top, side, cell } = this.frame(), ratio = window.devicePixelRatio || 1;
    const height = top + side + 38;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.image, left, top, side, side);
    pen.strokeStyle = "#888";
    pen.strokeRect(left - 0.5, top - 0.5, side + 1, side + 1);
    pen.fillStyle = "#1a1a1a";
    pen.font = "12px system-ui, sans-serif";
    const step = [1, 2, 4, 5, 8, 10, 16, 20, 32, 64, 128].find((n) => n * cell >= 28) || 256;
    for (let i = 0; i < this.size; i += step) {
      const middle = (i + 0.5) * cell;
      pen.textAlign = "center";
      pen.fillText(i + this.first, left + middle, top + side + 15);
      pen.textAlign = "right";
      pen.fillText(i + this.first, left - 5, top + middle + 4);
    }
    pen.textAlign = "center";
    pen.fillText(this.across, left + side / 2, top + side + 32);
    pen.save();
    pen.translate(11, top + side / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(this.down, 0, 0);
    pen.restore();
    const box = (row, column, rows, columns, color, width) => {
      pen.strokeStyle = color;
      pen.lineWidth = width;
      pen.strokeRect(left + column * cell, top + row * cell, columns * cell, rows * cell);
    };
    for (const [first, last] of this.blocks || []) {
      box(first - 1, first - 1, last - first + 1, last - first + 1, "#222", 1);
    }
    const { row, column } = this.marks;
    if (row != null && column != null && this.single) box(row, column, 1, 1, "#d55e00", 2.5);
    if (row != null && !this.single) box(row, 0, 1, this.size, "#e69f00", 1.5);
    if (column != null && !this.single) box(0, column, this.size, 1, "#e69f00", 1.5);
    if (this.cursor && document.activeElement === this.canvas) box(...this.cursor, 1, 1, "#000", 2);
  }

  at(event, act) {
    const { left, top, cell } = this.frame(), box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - left) / cell);
    const row = Math.floor((event.clientY - box.top - top) / cell);
    if (row < 0 || column < 0 || row >= this.size || column >= this.size) return;
    this.cursor = [row, column];
    act(row, column);
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [row, column] = this.cursor || [this.marks.row ?? 0, this.marks.column ?? 0];
    if (event.key in steps) {
      const [down, right] = steps[event.key], inside = (n) => Math.min(this.size - 1, Math.max(0, n));
      this.cursor = [inside(row + down), inside(column + right)];
      this.move(...this.cursor);
      this.paint();
    } else if (event.key === "Enter" || event.key === " ") {
      this.pick(row, column);
    } else {
      return;
    }
    event.preventDefault();
  }
}
