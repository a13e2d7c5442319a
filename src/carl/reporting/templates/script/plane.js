/* ---------- map ---------- */

const THUMBS_FROM = 110, THUMB_SIDE = 44;
const OVERVIEW_THUMBS = 260;  // pictures among the points of the whole map
const MODES = ["move", "box", "lasso"];  // what a drag does

/** The images of a gallery on a canvas: zoom, pan, hover, choose; with `take`, images inside a box or a lasso are taken. */
class Plane {
  constructor(canvas, gallery, { by, choose, take = null, still = false }) {
    Object.assign(this, { canvas, gallery, by, choose, take, zoom: 1, hovered: -1, selected: -1, shown: null, pointers: new Map() });
    Object.assign(this, { mode: "move", outline: null, pictures: !still });
    this.count = gallery.places.length / 2;
    this.lay(gallery.places);
    if (!still) this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
    planes.push(this);
  }

  /** Put the images at these places, and show the whole map. */
  lay(places) {
    this.places = places;
    const along = [0, 1].map((axis) => places.filter((_, k) => k % 2 === axis));
    const ends = along.map((values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]);
    this.span = ends.map(([low, high]) => Math.max(1, high - low));
    this.middle = ends.map(([low, high]) => (low + high) / 2);
    [this.x, this.y] = this.middle;
    this.zoom = 1;
  }

  get scale() { return 0.93 * Math.min(this.canvas.clientWidth / this.span[0], this.canvas.clientHeight / this.span[1]) * this.zoom; }
  toScreen(i) {
    return [this.canvas.clientWidth / 2 + (this.places[2 * i] - this.x) * this.scale, this.canvas.clientHeight / 2 - (this.places[2 * i + 1] - this.y) * this.scale];
  }

  draw(atOnce = false) {
    cancelAnimationFrame(this.frame);
    if (atOnce) this.paint();
    else this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const { canvas } = this, ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const colour = colours(this.gallery, this.by), visible = [];
    for (let i = 0; i < this.count; i++) {
      const [x, y] = this.toScreen(i);
      if (x > -30 && y > -30 && x < width + 30 && y < height + 30) visible.push([i, x, y]);
    }
    const asThumbs = this.pictures && this.zoom > 1.5 && visible.length <= THUMBS_FROM, taken = this.take && selection.size > 0;
    const radius = Math.max(1.2, Math.min(5, 3 * Math.sqrt(3000 / Math.max(600, this.count)) * Math.sqrt(this.zoom) * Math.min(1, canvas.clientWidth / 700)));
    for (const pass of this.shown ? [false, true] : [true]) {
      for (const [i, x, y] of visible) {
        const strong = !this.shown || this.shown.has(i);
        if (strong !== pass) continue;
        context.globalAlpha = !strong ? 0.1 : taken && !selection.has(i) ? 0.3 : this.shown ? 0.95 : 0.8;
        if (asThumbs) this.paintThumb(context, i, x, y, THUMB_SIDE, colour[i]);
        else this.paintPoint(context, x, y, strong && this.shown ? radius * 1.5 : radius, colour[i]);
      }
    }
    context.globalAlpha = 1;
    if (taken) for (const [i, x, y] of visible) if (selection.has(i)) this.ring(context, x, y, radius + 1.5, 1, isDark() ? "#7fb4f5" : "#1d5fb4");
    if (this.pictures && !asThumbs) this.paintOverview(context, visible, colour, width, taken);
    this.paintChosen(context);
    if (this.outline) this.paintOutline(context);
    canvas.dataset.zoom = this.zoom.toFixed(2);
    canvas.classList.toggle("zoomed", this.zoom > 1);  // one finger then pans the map, and else scrolls the page
  }

  /** Pictures of some images among the points, none over another; those with a low number first, so that they stay. */
  paintOverview(context, visible, colour, width, taken) {
    const side = width < 500 ? 22 : 30, reach = 1.55 * side, placed = new Map();
    let count = 0;
    for (const [i, x, y] of visible) {
      if ((this.shown && !this.shown.has(i)) || (taken && !selection.has(i))) continue;
      const column = Math.floor(x / reach), row = Math.floor(y / reach);
      let free = true;
      for (let c = column - 1; c <= column + 1 && free; c++) {
        for (let r = row - 1; r <= row + 1 && free; r++) {
          const other = placed.get(c * 4096 + r);
          free = !other || Math.abs(other[0] - x) >= reach || Math.abs(other[1] - y) >= reach;
        }
      }
      if (!free) continue;
      placed.set(column * 4096 + row, [x, y]);
      this.paintThumb(context, i, x, y, side, colour[i]);
      if (++count === OVERVIEW_THUMBS) return;
    }
  }

  paintOutline(context) {
    context.beginPath();
    for (const [x, y] of this.corners()) context.lineTo(x, y);
    context.closePath();
    context.fillStyle = isDark() ? "#7fb4f533" : "#1d5fb422";
    context.fill();
    context.strokeStyle = isDark() ? "#7fb4f5" : "#1d5fb4";
    context.lineWidth = 2;
    context.stroke();
    context.lineWidth = 1;
  }

  /** The corners of what is being drawn: of a box, its four. */
  corners() {
    const { kind, points } = this.outline, [a, b] = points[0], [x, y] = points.at(-1);
    return kind === "box" ? [[a, b], [x, b], [x, y], [a, y]] : points;
  }

  /** The images inside the outline. */
  inside() {
    const corners = this.corners(), found = [];
    for (let i = 0; i < this.count; i++) {
      if (this.shown && !this.shown.has(i)) continue;
      const [x, y] = this.toScreen(i);
      let within = false;
      for (let k = 0, before = corners.length - 1; k < corners.length; before = k++) {
        const [a, b] = corners[k], [c, d] = corners[before];
        if ((b > y) !== (d > y) && x < (c - a) * (y - b) / (d - b) + a) within = !within;
      }
      if (within) found.push(i);
    }
    return found;
  }

  setMode(mode) {
    this.mode = mode;
    this.canvas.dataset.mode = mode;
    this.canvas.classList.toggle("drawing", mode !== "move");  // a finger then draws and does not scroll the page
  }

  paintPoint(context, x, y, radius, colour) {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fill();
  }

  paintThumb(context, i, x, y, side, colour) {
    const at = cell(i), { left, top } = at, image = sheetOf(at);
    const height = side * sheets.height / sheets.width;
    context.fillStyle = colour;
    context.fillRect(x - side / 2 - 2, y - height / 2 - 2, side + 4, height + 4);
    context.imageSmoothingEnabled = !images.pixelated;
    if (image.complete && image.naturalWidth) context.drawImage(image, left, top, sheets.width, sheets.height, x - side / 2, y - height / 2, side, height);
  }

  paintChosen(context) {
    if (this.selected >= 0) {
      const [x, y] = this.toScreen(this.selected);
      for (const j of neighboursOf(this.gallery, this.selected)) {
        const [a, b] = this.toScreen(j);
        context.strokeStyle = isDark() ? "#ffffff66" : "#00000055";
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(a, b);
        context.stroke();
        this.ring(context, a, b, 5, 1.5);
      }
      this.paintThumb(context, this.selected, x, y, THUMB_SIDE, isDark() ? "#ffffff" : "#111111");
    }
    if (this.hovered >= 0) this.ring(context, ...this.toScreen(this.hovered), 8, 2.5);
  }

  ring(context, x, y, radius, width, colour = isDark() ? "#ffffff" : "#111111") {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.stroke();
    context.lineWidth = 1;
  }

  nearest(x, y, within = 16) {
    let best = -1, distance = within * within;
    for (let i = 0; i < this.count; i++) {
      if (this.shown && !this.shown.has(i)) continue;
      const [a, b] = this.toScreen(i), d = (a - x) ** 2 + (b - y) ** 2;
      if (d < distance) [best, distance] = [i, d];
    }
    return best;
  }

  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const before = this.scale;
    this.zoom = Math.max(1, Math.min(60, this.zoom * factor));
    const dx = x - this.canvas.clientWidth / 2, dy = this.canvas.clientHeight / 2 - y;
    this.x += dx / before - dx / this.scale;
    this.y += dy / before - dy / this.scale;
    if (this.zoom === 1) [this.x, this.y] = this.middle;
    this.draw();
  }

  reset() {
    Object.assign(this, { zoom: 1, x: this.middle[0], y: this.middle[1] });
    showAlone(null);
  }

  hover(i, x, y) {
    if (i !== this.hovered) { this.hovered = i; this.draw(); }
    if (i < 0) return hideTip();
    showTip(x, y, plainThumb(i), element("div", {}, fileName(nameOf(i))), ...describe(this.gallery, i).map((text) => element("div", { class: "soft" }, text)));
  }

  select(i) { this.selected = i; this.draw(); }

  listen() {
    const { canvas } = this, at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) return;  // the page scrolls until the map is chosen
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY * 0.002), ...at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, at(event));
      this.moved = false;
      const kind = this.mode !== "move" ? this.mode : event.shiftKey ? "lasso" : "";
      this.outline = this.take && kind && this.pointers.size === 1 ? { kind, points: [at(event)] } : null;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event), before = this.pointers.get(event.pointerId);
      if (!before) return this.hover(this.nearest(x, y), event.clientX, event.clientY);
      if (Math.hypot(x - before[0], y - before[1]) < 3 && !this.moved) return;
      this.moved = true;
      if (this.pointers.size === 2) {
        this.outline = null;
        const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
        this.zoomBy(Math.hypot(x - other[0], y - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1])), ...other);
      } else if (this.outline) {
        this.outline.points.push([x, y]);
        hideTip();
        this.draw();
      } else {
        this.x -= (x - before[0]) / this.scale;
        this.y += (y - before[1]) / this.scale;
        this.draw();
      }
      this.pointers.set(event.pointerId, [x, y]);
    });
    const end = (event) => this.pointers.delete(event.pointerId);
    canvas.addEventListener("pointercancel", (event) => { end(event); this.outline = null; this.draw(); });
    canvas.addEventListener("pointerup", (event) => {
      end(event);
      if (this.outline) {
        const found = this.moved ? this.inside() : null;
        this.outline = null;
        this.draw();
        if (found) return this.take(found, event.shiftKey || event.ctrlKey || event.metaKey);
      }
      const i = this.moved ? -1 : this.nearest(...at(event), 20);
      if (i >= 0) this.choose(i);
    });
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    canvas.addEventListener("blur", () => this.hover(-1));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (direction) this.step(...direction);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
    else if (event.key === "-") this.zoomBy(1 / 1.5);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else if (event.key === "Enter" && this.hovered >= 0) this.choose(this.hovered);
    else if (this.take && event.key === " ") this.takeAt(this.hovered);
    else if (this.take && event.key === "g" && this.gallery.group) this.takeGroup(this.hovered >= 0 ? this.hovered : this.selected);
    else if (this.take && { v: 1, b: 1, l: 1 }[event.key]) chooseMode({ v: "move", b: "box", l: "lasso" }[event.key]);
    else return;
    event.preventDefault();
  }

  takeAt(i) {
    if (i < 0) return;
    if (selection.has(i)) selection.delete(i);
    else selection.add(i);
    selectionChanged();
  }

  takeGroup(i) {
    if (i >= 0) this.take(membersOf(this.gallery, this.gallery.group[i]), false);
  }

  /** To the next image in a direction: near ones first, those off the line later. */
  step(dx, dy) {
    const from = this.hovered >= 0 ? this.hovered : this.selected >= 0 ? this.selected : 0, [x, y] = this.toScreen(from);
    let best = from, cost = Infinity;
    for (let i = 0; i < this.count; i++) {
      const [a, b] = this.toScreen(i), along = (a - x) * dx + (b - y) * dy, aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
      if (i !== from && along > 1 && along + 2 * aside < cost && (!this.shown || this.shown.has(i))) [best, cost] = [i, along + 2 * aside];
    }
    const [a, b] = this.toScreen(best), box = this.canvas.getBoundingClientRect();
    if (a < 0 || b < 0 || a > box.width || b > box.height) [this.x, this.y] = [this.places[2 * best], this.places[2 * best + 1]];
    const [left, top] = this.toScreen(best);
    this.hover(best, box.left + left, box.top + top);
  }
}

