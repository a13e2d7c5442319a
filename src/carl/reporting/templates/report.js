"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const { images, galleries } = data;
const find = (id) => document.getElementById(id);
const root = document.documentElement;

/* ---------- elements ---------- */

// All text goes in as text: names and labels come from the data and are never read as markup.
function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function drawing(name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function figure(value) {
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (value === 0 || size >= 100) return String(Math.round(value));
  if (size >= 1) return String(Number(value.toFixed(2)));
  return String(Number(value.toPrecision(3)));
}

const percent = (part) => `${Math.round(100 * part)}%`;

function choices(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  select.value = chosen;
}

const tip = find("tip");
function showTip(x, y, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };

/* ---------- light and dark ---------- */

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const planes = [];
function themeChanged() {
  find("theme").textContent = isDark() ? "Light" : "Dark";
  planes.forEach((plane) => plane.draw());
}
find("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  themeChanged();
});
prefersDark.addEventListener("change", themeChanged);
for (const [event, state] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    printing = state;
    for (const part of document.querySelectorAll("details")) {
      if (state) part.dataset.open = part.open;
      part.open = state || part.dataset.open === "true";
    }
    planes.forEach((plane) => plane.draw(true));
    document.querySelectorAll(".thumb").forEach(state ? drawnThumb : (node) => node.replaceChildren());
  });
}

/* ---------- curves ---------- */

const WIDTH = 360, HEIGHT = 176, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 24;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

function chartFigure(chart) {
  const points = chart.series.flatMap((line) => line.points), values = points.map((p) => p[1]);
  if (chart.mark) values.push(chart.mark.value);
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5, high + 0.5];
  const margin = 0.06 * (high - low), end = Math.max(...points.map((p) => p[0]), 1e-9);
  [low, high] = [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  const x = (epoch) => LEFT + (WIDTH - LEFT - RIGHT) * epoch / end;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);

  const svg = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": description(chart) });
  for (const value of ticks(low, high, 4)) {
    svg.append(drawing("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      drawing("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, figure(value)));
  }
  for (const epoch of ticks(0, end, 5)) svg.append(drawing("text", { x: x(epoch), y: HEIGHT - 8, "text-anchor": epoch > 0.97 * end ? "end" : "middle" }, figure(epoch)));
  if (chart.mark) {
    svg.append(drawing("line", { class: "mark", x1: LEFT, x2: WIDTH - RIGHT, y1: y(chart.mark.value), y2: y(chart.mark.value) }),
      drawing("text", { x: WIDTH - RIGHT, y: y(chart.mark.value) + 13, "text-anchor": "end" }, chart.mark.name));
  }
  const both = new Set(chart.series.map((line) => line.kind)).size > 1;
  for (const line of chart.series) {
    const group = drawing("g", { class: `run${line.run % 8} ${line.kind}${both && line.kind === "step" && data.runs.length === 1 ? " behind" : ""}` });
    group.append(drawing("polyline", { points: line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }));
    if (line.points.length === 1 || (line.kind === "probe" && line.points.length <= 50)) {
      for (const [a, b] of line.points) group.append(drawing("circle", { cx: x(a), cy: y(b), r: 2.6 }));
    }
    svg.append(group);
  }
  followPointer(svg, chart, x, end);
  const last = data.runs.length === 1 ? figure(chart.series.at(-1).points.at(-1)[1]) : "";
  return element("figure", { class: "chart", "data-key": chart.key }, element("figcaption", {}, element("span", {}, chart.title), element("output", {}, last)), svg);
}

function description(chart) {
  const lines = chart.series.map((line) => `${data.runs[line.run]} ${line.name}: ${figure(line.points[0][1])} to ${figure(line.points.at(-1)[1])}`);
  return `${chart.title} over the epochs. ${lines.join("; ")}`;
}

function followPointer(svg, chart, x, end) {
  const cursor = drawing("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  const epochs = [...new Set(chart.series.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
  let place = epochs.length - 1;
  const nearest = (list, epoch, of) => list.reduce((best, item) => (Math.abs(of(item) - epoch) < Math.abs(of(best) - epoch) ? item : best));
  function show(clientY) {
    const epoch = epochs[place], box = svg.getBoundingClientRect();
    cursor.setAttribute("x1", x(epoch));
    cursor.setAttribute("x2", x(epoch));
    cursor.setAttribute("visibility", "visible");
    const rows = chart.series.map((line) => {
      const [, value] = nearest(line.points, epoch, (p) => p[0]);
      const name = data.runs.length > 1 ? data.runs[line.run] : line.name;
      return element("div", {}, element("span", { class: `dot run${line.run % 8}` }), `${name}: ${figure(value)}`);
    });
    showTip(box.left + box.width * x(epoch) / WIDTH, clientY ?? box.top + box.height / 2, element("b", {}, `epoch ${figure(epoch)}`), ...rows);
  }
  function leave() { cursor.setAttribute("visibility", "hidden"); hideTip(); }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const epoch = ((event.clientX - box.left) * WIDTH / box.width - LEFT) / (WIDTH - LEFT - RIGHT) * end;
    place = epochs.indexOf(nearest(epochs, epoch, (e) => e));
    show(event.clientY);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    place = Math.max(0, Math.min(epochs.length - 1, place + step));
    show();
  });
}

function drawCurves(host) {
  if (!data.charts.length) return host.append(element("p", { class: "note" }, "Nothing was logged yet."));
  if (data.runs.length > 1) host.append(element("div", { class: "key" }, ...data.runs.map((name, place) => element("span", {}, element("span", { class: `dot run${place % 8}` }), name))));
  else if (data.charts.some((chart) => chart.series.length > 1)) host.append(element("p", { class: "lead" }, "Each curve runs over the epochs. The pale line is the mean over training batches. The strong line with dots is the probe: it is measured on a fixed sample of images."));
  for (const name of new Set(data.charts.map((chart) => chart.group))) {
    const shown = element("div", { class: "charts" }, ...data.charts.filter((chart) => chart.group === name).map(chartFigure));
    if (name === "More figures") host.append(element("details", {}, element("summary", {}, name), shown));
    else host.append(element("h3", {}, name), shown);
  }
}

/* ---------- thumbnails ---------- */

const sheets = images ? images.sheets : null;
const perSheet = sheets ? sheets.columns * sheets.rows : 1;
const sheetImages = [];

function prepareThumbnails() {
  const width = sheets.columns * sheets.cell_width, height = sheets.rows * sheets.cell_height;
  const style = document.styleSheets[0];
  const smooth = images.pixelated ? "image-rendering: pixelated;" : "";
  style.insertRule(`.thumb { aspect-ratio: ${sheets.width} / ${sheets.height}; background-size: ${100 * width / sheets.width}% ${100 * height / sheets.height}%; ${smooth} }`, style.cssRules.length);
  sheets.images.forEach((address, place) => {
    style.insertRule(`@media screen { .sheet${place} { background-image: url("${address}"); } }`, style.cssRules.length);
    const image = new Image();
    image.addEventListener("load", () => planes.forEach((plane) => plane.draw()));
    image.src = address;
    sheetImages.push(image);
  });
}

function cell(i) {
  const local = i % perSheet;
  return { sheet: Math.floor(i / perSheet), left: (local % sheets.columns) * sheets.cell_width, top: Math.floor(local / sheets.columns) * sheets.cell_height };
}

function asThumb(node, i) {
  const { sheet, left, top } = cell(i);
  node.classList.add("thumb", `sheet${sheet}`);
  node.dataset.image = i;
  node.style.backgroundPosition = `${100 * left / (sheets.columns * sheets.cell_width - sheets.width)}% ${100 * top / (sheets.rows * sheets.cell_height - sheets.height)}%`;
  return node;
}

/** The thumbnail as a canvas of its own: a printer decodes a whole sheet again for every thumbnail cut from it. */
function drawnThumb(node) {
  const { sheet, left, top } = cell(Number(node.dataset.image)), canvas = element("canvas", { width: sheets.width, height: sheets.height });
  if (!sheetImages[sheet].complete) return;
  canvas.getContext("2d").drawImage(sheetImages[sheet], left, top, sheets.width, sheets.height, 0, 0, sheets.width, sheets.height);
  node.replaceChildren(canvas);
}

const labelOf = (i) => (images.labels && images.labels[i] >= 0 ? images.classes[images.labels[i]] : "");
const nameOf = (i) => (images.names ? images.names[i] : `image ${images.rows[i]}`);
const captionOf = (i) => (labelOf(i) ? `${nameOf(i)} (${labelOf(i)})` : nameOf(i));

/** A thumbnail to click; `asked` is the image whose label it is compared with. */
function thumb(i, go, asked) {
  const node = asThumb(element("button", { type: "button", title: captionOf(i), "aria-label": captionOf(i), onclick: () => go(i) }), i);
  if (asked !== undefined && labelOf(asked) && labelOf(i)) node.classList.toggle("same", images.labels[i] === images.labels[asked]);
  return node;
}

const plainThumb = (i) => asThumb(element("span"), i);

/* ---------- colours ---------- */

const TWENTY = ["#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#8a8f99",
  "#2f4b7c", "#a05195", "#d45087", "#00876c", "#8cb369", "#c9a227", "#5f0f40", "#3a86ff", "#bc6c25", "#6c757d"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];  // viridis
const angleColour = (n) => `hsl(${(n * 137.508) % 360} ${55 + 15 * (n % 3)}% ${isDark() ? 64 : 46}%)`;
const classColour = (c) => (c < 0 ? "#9aa3b2" : images.classes.length <= 20 ? TWENTY[c % 20] : angleColour(c));
function rampColour(part) {
  const at = Math.max(0, Math.min(0.9999, part)) * (RAMP.length - 1), low = Math.floor(at), rest = at - low;
  return `rgb(${RAMP[low].map((v, k) => Math.round(v + rest * (RAMP[low + 1][k] - v))).join(" ")})`;
}

function colours(gallery, by) {
  if (by === "label") return images.labels.map(classColour);
  if (by === "group") return gallery.group.map(angleColour);
  if (by === "confidence") {
    const sorted = [...gallery.confidence].sort((a, b) => a - b), low = sorted[Math.floor(0.02 * sorted.length)], high = sorted[Math.floor(0.98 * sorted.length)];
    return gallery.confidence.map((value) => rampColour((value - low) / Math.max(1, high - low)));
  }
  return gallery.places.filter((_, k) => k % 2 === 0).map(() => (isDark() ? "#6cb0f7" : "#1f6fc4"));
}

function colourChoices(gallery) {
  const word = gallery.grouping === "k-means" ? "cluster" : "prototype";
  return [...(images.labels ? [["label", "label"]] : []), ...(gallery.group ? [["group", word], ["confidence", "confidence"]] : []), ["none", "nothing"]];
}

/* ---------- map ---------- */

const THUMBS_FROM = 110, THUMB_SIDE = 44;

/** The images of a gallery on a canvas: zoom, pan, hover, choose. */
class Plane {
  constructor(canvas, gallery, { by, choose, still = false }) {
    Object.assign(this, { canvas, gallery, by, choose, zoom: 1, hovered: -1, selected: -1, shown: null, pointers: new Map() });
    this.count = gallery.places.length / 2;
    const along = [0, 1].map((axis) => gallery.places.filter((_, k) => k % 2 === axis));
    const ends = along.map((values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]);
    this.span = ends.map(([low, high]) => Math.max(1, high - low));
    this.middle = ends.map(([low, high]) => (low + high) / 2);
    [this.x, this.y] = this.middle;
    if (!still) this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
    planes.push(this);
  }

  get scale() { return 0.93 * Math.min(this.canvas.clientWidth / this.span[0], this.canvas.clientHeight / this.span[1]) * this.zoom; }
  toScreen(i) {
    return [this.canvas.clientWidth / 2 + (this.gallery.places[2 * i] - this.x) * this.scale, this.canvas.clientHeight / 2 - (this.gallery.places[2 * i + 1] - this.y) * this.scale];
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
    const asThumbs = this.zoom > 1.5 && visible.length <= THUMBS_FROM;
    const radius = Math.max(1.2, Math.min(5, 3 * Math.sqrt(3000 / Math.max(600, this.count)) * Math.sqrt(this.zoom) * Math.min(1, canvas.clientWidth / 700)));
    for (const pass of this.shown ? [false, true] : [true]) {
      for (const [i, x, y] of visible) {
        const strong = !this.shown || this.shown.has(i);
        if (strong !== pass) continue;
        context.globalAlpha = strong ? (this.shown ? 0.95 : 0.8) : 0.1;
        if (asThumbs) this.paintThumb(context, i, x, y, THUMB_SIDE, colour[i]);
        else this.paintPoint(context, x, y, strong && this.shown ? radius * 1.5 : radius, colour[i]);
      }
    }
    context.globalAlpha = 1;
    this.paintChosen(context);
    canvas.dataset.zoom = this.zoom.toFixed(2);
    canvas.classList.toggle("zoomed", this.zoom > 1);  // one finger then pans the map, and else scrolls the page
  }

  paintPoint(context, x, y, radius, colour) {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fill();
  }

  paintThumb(context, i, x, y, side, colour) {
    const { sheet, left, top } = cell(i), image = sheetImages[sheet];
    const height = side * sheets.height / sheets.width;
    context.fillStyle = colour;
    context.fillRect(x - side / 2 - 2, y - height / 2 - 2, side + 4, height + 4);
    context.imageSmoothingEnabled = !images.pixelated;
    if (image.complete) context.drawImage(image, left, top, sheets.width, sheets.height, x - side / 2, y - height / 2, side, height);
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

  ring(context, x, y, radius, width) {
    context.strokeStyle = isDark() ? "#ffffff" : "#111111";
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
    showTip(x, y, plainThumb(i), element("div", {}, nameOf(i)), ...describe(this.gallery, i).map((text) => element("div", { class: "soft" }, text)));
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
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event), before = this.pointers.get(event.pointerId);
      if (!before) return this.hover(this.nearest(x, y), event.clientX, event.clientY);
      if (Math.hypot(x - before[0], y - before[1]) < 3 && !this.moved) return;
      this.moved = true;
      if (this.pointers.size === 2) {
        const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
        this.zoomBy(Math.hypot(x - other[0], y - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1])), ...other);
      } else {
        this.x -= (x - before[0]) / this.scale;
        this.y += (y - before[1]) / this.scale;
        this.draw();
      }
      this.pointers.set(event.pointerId, [x, y]);
    });
    const end = (event) => this.pointers.delete(event.pointerId);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerup", (event) => {
      end(event);
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
    else return;
    event.preventDefault();
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
    if (a < 0 || b < 0 || a > box.width || b > box.height) [this.x, this.y] = [this.gallery.places[2 * best], this.gallery.places[2 * best + 1]];
    const [left, top] = this.toScreen(best);
    this.hover(best, box.left + left, box.top + top);
  }
}

/* ---------- one image ---------- */

const neighboursOf = (gallery, i, which = "neighbours") => (gallery[which] ?? galleries[0][which]).slice(i * gallery.near, (i + 1) * gallery.near);
const groupOf = (gallery, number) => gallery.groups?.shown.find((group) => group.number === number);  // of very many only the largest
const groupWord = (gallery) => (gallery.grouping === "k-means" ? "cluster" : "prototype");

function describe(gallery, i) {
  const lines = labelOf(i) ? [labelOf(i)] : [];
  if (gallery.group) lines.push(`${groupWord(gallery)} #${gallery.group[i]}, confidence ${(gallery.confidence[i] / 1000).toFixed(2)}`);
  return lines;
}

/** An image with its neighbours by the encoder and by random weights; `go` is called for an image clicked. */
function imageView(gallery, i, go) {
  const strip = (which) => element("div", { class: "eight", "data-by": which }, ...neighboursOf(gallery, i, which).map((j) => thumb(j, go, i)));
  const text = element("div", {}, element("p", { class: "name" }, nameOf(i)));
  if (labelOf(i)) text.append(element("p", {}, labelOf(i)));
  if (gallery.group) {
    text.append(element("p", { class: "soft" }, `confidence ${(gallery.confidence[i] / 1000).toFixed(2)}`),
      element("p", {}, groupOf(gallery, gallery.group[i]) ? element("button", { type: "button", onclick: () => openGroup(gallery.group[i]) }, `${groupWord(gallery)} #${gallery.group[i]}`) : `${groupWord(gallery)} #${gallery.group[i]}`));
  }
  const subject = element("div", { class: "subject", "data-image": i, tabindex: "-1" }, plainThumb(i), text);
  const nearest = gallery.near ? ` (cosine similarity ${(gallery.nearest[i] / 1000).toFixed(2)} to the first)` : "";
  return [subject,
    element("h4", {}, "Most alike to this encoder", element("span", { class: "soft" }, nearest)), strip("neighbours"),
    element("h4", {}, "Most alike with random weights"), strip("random")];
}

const dialog = find("dialog");
function openDialog(title, ...content) {
  hideTip();
  dialog.replaceChildren(element("div", { class: "dialog-head" }, element("h2", { id: "dialog-title", tabindex: "-1" }, title),
    element("button", { type: "button", onclick: () => dialog.close() }, "Close")), ...content);
  const again = dialog.open;
  if (!again) dialog.showModal();
  dialog.scrollTop = 0;
  if (again) find("dialog-title").focus();  // what had it is gone
}
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

function openImage(i, gallery = galleries[0]) {
  openDialog("Image", ...imageView(gallery, i, (j) => openImage(j, gallery)),
    mainPlane ? element("p", {}, element("button", { type: "button", onclick: () => { dialog.close(); chooseOnMap(i); find("map").scrollIntoView(); } }, "Show on the map")) : null);
}

/* ---------- prototypes ---------- */

const MANY = 60;
const SORTS = {
  size: ["size", (a, b) => b.members.length - a.members.length], purity: ["purity", (a, b) => (b.purity ?? -1) - (a.purity ?? -1) || b.members.length - a.members.length],
  confidence: ["confidence", (a, b) => b.confidence - a.confidence], number: ["number", (a, b) => a.number - b.number],
};
const has = (group, kind) => group.marks.some((mark) => mark.kind === kind);
const labelled = (group) => (group.purity ?? null) !== null;  // whether any of its images has a label
const markText = (mark) => (mark.kind === "near-duplicate" ? `near-duplicate of #${mark.of}` : mark.kind);

function groupCard(gallery, group) {
  const size = group.members.length, empty = !size;
  const figures = empty ? "no image chose it; these come nearest" : [`confidence ${group.confidence.toFixed(2)}`, ...(labelled(group) ? [`purity ${percent(group.purity)}`] : [])].join(" \u00b7 ");
  const card = element("button", { type: "button", class: `card${empty ? " empty" : ""}`, "data-group": group.number, onclick: () => openGroup(group.number) },
    element("span", { class: "head" }, element("b", {}, `#${group.number}`), ...group.marks.map((mark) => element("span", { class: `marker ${mark.kind}` }, markText(mark))), element("span", { class: "size" }, `${size} image${size === 1 ? "" : "s"}`)),
    element("span", { class: "strip" }, ...(empty ? group.best : group.members).slice(0, empty ? 5 : 10).map(plainThumb)), element("span", { class: "soft" }, figures));
  if (labelled(group)) {
    card.append(classBar(group.classes), element("span", { class: "soft" }, group.classes.slice(0, 3).map(([c, part]) => `${images.classes[c]} ${percent(part)}`).join(", ")));
  }
  return card;
}

function classBar(classes) {
  return element("span", { class: "classes" }, ...classes.map(([c, part]) => {
    const span = element("span");
    span.style.width = `${100 * part}%`;
    span.style.background = classColour(c);
    return span;
  }));
}

function drawGroups(gallery) {
  const sort = find("group-sort"), filter = find("group-filter"), list = find("group-list"), more = find("group-more");
  const { count, used, kinds, shown: groups } = gallery.groups, part = groups.length < count;
  choices(sort, Object.entries(SORTS).filter(([key]) => key !== "purity" || images.labels).map(([key, [text]]) => [key, text]), "size");
  choices(filter, [["all", "all"], ["used", "those in use"], ...Object.entries(kinds).filter(([kind]) => groups.some((group) => has(group, kind))).map(([kind, number]) => [kind, `${kind} (${number.toLocaleString("en")})`])], "all");
  let shown = 24;
  function draw() {
    const wanted = groups.filter((group) => filter.value === "all" || (filter.value === "used" ? group.members.length : has(group, filter.value)));
    wanted.sort(SORTS[sort.value][1]);
    list.replaceChildren(...wanted.slice(0, shown).map((group) => groupCard(gallery, group)));
    more.hidden = wanted.length <= shown;
    find("group-count").textContent = `${Math.min(shown, wanted.length)} of ${wanted.length} shown; ${used} of ${count} chosen by at least one image of the sample`;
  }
  for (const select of [sort, filter]) select.addEventListener("change", () => { shown = 24; draw(); });
  more.addEventListener("click", () => { shown += MANY; draw(); });
  if (part) {
    const marked = Object.entries(kinds).map(([kind, number]) => `${number.toLocaleString("en")} ${kind}`).join(", ");
    find("group-part").textContent = `This page holds the largest ${groups.length.toLocaleString("en")} of ${count.toLocaleString("en")}${marked ? `; of all, ${marked}` : ""}.`;
  }
  draw();
}

function openGroup(number) {
  const gallery = galleries[0], group = groupOf(gallery, number), size = group.members.length;
  const word = groupWord(gallery), members = element("div", { class: "members" });
  const listed = size ? group.members : group.best;
  const show = (count) => members.replaceChildren(...listed.slice(0, count).map((i) => thumb(i, (j) => openImage(j))));
  show(MANY);
  const canvas = element("canvas", { role: "img", "aria-label": `Where the images of ${word} ${number} lie on the map` });
  const left = element("div", {}, element("p", {}, size ? `${size.toLocaleString("en")} of ${images.count.toLocaleString("en")} images, mean confidence ${group.confidence.toFixed(2)}` : "No image chose it. These come nearest."),
    ...group.marks.map((mark) => element("p", {}, element("span", { class: `marker ${mark.kind}` }, markText(mark)), " ",
      mark.kind === "near-duplicate" && groupOf(gallery, mark.of) ? element("button", { type: "button", onclick: () => openGroup(mark.of) }, `Open #${mark.of}`) : null)));
  if (labelled(group)) {
    left.append(element("h4", {}, `Classes (purity ${percent(group.purity)})`), ...group.classes.map(([c, part]) => element("div", { class: "share" }, element("span", { title: images.classes[c] }, images.classes[c]), classBar([[c, part]]), element("span", {}, percent(part)))));
  }
  const right = element("div", {}, canvas, element("p", {}, element("button", { type: "button", onclick: () => showOnMap(group) }, "Show on the map")));
  const all = listed.length > MANY ? element("p", {}, element("button", { type: "button", onclick: (event) => { show(listed.length); event.target.remove(); } }, `Show all ${listed.length}`)) : null;
  openDialog(`${word[0].toUpperCase()}${word.slice(1)} #${number}`, element("div", { class: "group-body" }, left, right), element("h4", {}, "Images, the surest first"), members, all);
  const plane = new Plane(canvas, gallery, { by: images.labels ? "label" : "none", choose: () => {}, still: true });
  plane.shown = new Set(group.members);
  dialog.addEventListener("close", () => planes.splice(planes.indexOf(plane), 1), { once: true });
}

function showOnMap(group) {
  dialog.close();
  showAlone(new Set(group.members));
  find("map").scrollIntoView();
  find("plane").focus({ preventScroll: true });
}

/* ---------- the map's section ---------- */

let mainPlane = null;
let mapPlanes = [];  // those that legend and colours are for

function chooseOnMap(i) {
  const panel = find("panel"), inside = panel.contains(document.activeElement);
  mainPlane.select(i);
  panel.replaceChildren(...imageView(galleries[0], i, chooseOnMap));
  if (inside) panel.querySelector(".subject").focus();  // the thumbnail that had it is gone
}

/** These images alone on the maps, the others pale, and the button that asked for it pressed; all images with null. */
function showAlone(shown, pressed = null) {
  for (const plane of mapPlanes) { plane.shown = shown; plane.draw(); }
  for (const button of find("legend").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button === pressed));
}

function drawLegend(gallery, by) {
  const legend = find("legend");
  legend.replaceChildren();
  if (by === "confidence") {
    const ramp = element("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(rampColour).join(", ")})`;
    legend.append("unsure", ramp, "sure");
  }
  if (by !== "label") return;
  images.classes.slice(0, 40).forEach((name, c) => {
    const dot = element("span", { class: "dot" });
    dot.style.background = classColour(c);
    const button = element("button", { type: "button", "aria-pressed": "false", title: `Show ${name} alone` }, dot, name);
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-pressed") === "true") showAlone(null);
      else showAlone(new Set(images.labels.flatMap((label, i) => (label === c ? [i] : []))), button);
    });
    legend.append(button);
  });
  if (images.classes.length > 40) legend.append(`and ${images.classes.length - 40} more`);
}

function mapLead(gallery) {
  const all = images.count === images.total;
  return `${all ? `All ${images.count.toLocaleString("en")}` : `${images.count.toLocaleString("en")} of ${images.total.toLocaleString("en")}`} images, placed by what the encoder sees in them (${gallery.projection} of its embeddings). Images that lie close together look alike to it.`;
}

function colourSelect() {
  const select = find("map-colour"), gallery = galleries[0];
  choices(select, colourChoices(gallery), mapPlanes[0].by);
  const change = () => {
    for (const plane of mapPlanes) plane.by = select.value;
    drawLegend(gallery, select.value);
    showAlone(null);
  };
  select.addEventListener("change", change);
  change();
}

const firstColour = () => (images.labels ? "label" : galleries[0].group ? "group" : "none");

function drawMap(gallery) {
  mainPlane = new Plane(find("plane"), gallery, { by: firstColour(), choose: chooseOnMap });
  find("map-lead").textContent = mapLead(gallery);
  mapPlanes = [mainPlane];
  colourSelect();
  find("map-in").addEventListener("click", () => mainPlane.zoomBy(1.6));
  find("map-out").addEventListener("click", () => mainPlane.zoomBy(1 / 1.6));
  find("map-reset").addEventListener("click", () => mainPlane.reset());
  chooseOnMap(images.queries[0]);
}

function drawMaps(host) {
  mapPlanes = galleries.map((gallery, place) => {
    const canvas = element("canvas", { tabindex: "0", role: "application", "aria-label": `Map of ${data.runs[place]}` });
    host.append(element("figure", {}, element("b", {}, element("span", { class: `dot run${place % 8}` }), data.runs[place]), canvas));
    return new Plane(canvas, gallery, { by: firstColour(), choose: (i) => openImage(i, gallery) });
  });
  find("map-lead").textContent = mapLead(galleries[0]);
  colourSelect();
}

/* ---------- neighbours ---------- */

function answer(gallery, i, which, name) {
  const row = element("div", { class: "row8", "data-by": name }, ...neighboursOf(gallery, i, which).map((j) => thumb(j, (k) => openImage(k, gallery), i)));
  return row;
}

function queryRow(i) {
  const asked = element("div", { class: "asked" }, thumb(i, (j) => openImage(j)), element("span", {}, images.labels ? labelOf(i) : nameOf(i)));
  if (galleries.length === 1) return element("div", { class: "query" }, asked, answer(galleries[0], i, "neighbours", "this encoder"), answer(galleries[0], i, "random", "random weights"));
  const rows = galleries.map((gallery, place) => element("div", { class: "answer" }, element("span", {}, element("span", { class: `dot run${place % 8}` }), data.runs[place]), answer(gallery, i, "neighbours", "")));
  rows.push(element("div", { class: "answer soft" }, "random weights", answer(galleries[0], i, "random", "")));
  return element("div", { class: "query many" }, asked, element("div", {}, ...rows));
}

function drawNeighbours() {
  const lead = find("neighbours-lead"), host = find("queries");
  const same = galleries.map((gallery) => gallery.same_label), near = galleries[0].near;
  let text = `Each row shows an image and the ${near} images that ${galleries.length > 1 ? "each encoder finds" : "the encoder finds"} most like it, beside those that the same encoder finds with random weights.`;
  if (same[0]) {
    const parts = same.map((s, place) => `${percent(s.trained)}${galleries.length > 1 ? ` (${data.runs[place]})` : ""}`);
    text += ` A green frame means the same label. Over all images, ${parts.join(", ")} of the neighbours have it, against ${percent(same[0].random)} with random weights and ${percent(same[0].chance)} by chance.`;
  }
  lead.textContent = text;
  const count = galleries.length === 1 ? images.queries.length : 4;
  function draw(queries) {
    const head = galleries.length === 1 ? [element("div", { class: "query head" }, element("span"), element("span", {}, "most alike to this encoder"), element("span", {}, "most alike with random weights"))] : [];
    host.replaceChildren(...head, ...queries.map(queryRow));
  }
  let turn = 0;
  find("other-queries").addEventListener("click", () => {
    turn += 1;
    draw(images.queries.slice(0, count).map((query, k) => (query + 7919 * turn + 104729 * k * turn) % images.count));
  });
  draw(images.queries.slice(0, count));
}

/* ---------- outliers and near-duplicates ---------- */

function drawOddities(gallery) {
  const host = find("oddities");
  const strip = (title, text, list, caption) => host.append(element("h3", {}, title), element("p", { class: "lead" }, text),
    element("div", { class: "odd" }, ...list.map((i) => element("figure", {}, thumb(i, (j) => openImage(j)), element("figcaption", {}, caption(i))))));
  if (gallery.unwanted) {
    const prototypes = gallery.grouping === "prototypes";
    strip(prototypes ? "Images that fit no prototype" : "Images far from every cluster", prototypes ? "Even their best prototype is unlikely. Its probability is written below." : "They are the least like the centre of their own cluster. The cosine similarity is written below.",
      gallery.unwanted, (i) => (gallery.confidence[i] / 1000).toFixed(2));
  }
  strip("Images unlike any other", "Even the image most like them is not very like them. The cosine similarity is written below.", gallery.lonely, (i) => (gallery.near ? (gallery.nearest[i] / 1000).toFixed(2) : ""));
  const { count, shown } = gallery.pairs, [cosine, correlation] = gallery.pair_thresholds;
  const among = images.count === images.total ? `Of all ${images.count.toLocaleString("en")} images, ` : `Of this sample of ${images.count.toLocaleString("en")} of the ${images.total.toLocaleString("en")} images, `;
  const rule = `alike to the encoder (cosine of at least ${cosine}, whitened) and in their coarse pixels (correlation of at least ${correlation})`;
  host.append(element("h3", {}, "Pairs that are almost the same"), element("p", { class: "lead" },
    `${among}${count ? `${count.toLocaleString("en")} pair${count === 1 ? " is" : "s are"} ${rule}${count > shown.length ? `; the closest ${shown.length} are shown` : ""}` : `no two images are ${rule}`}.`));
  host.append(element("div", { class: "pairs" }, ...shown.map(([a, b, alike, same]) => element("figure", {},
    element("div", { class: "pair" }, thumb(a, (j) => openImage(j)), thumb(b, (j) => openImage(j))),
    element("figcaption", {}, `cosine ${alike.toFixed(2)}, pixels ${same.toFixed(2)}`)))));
}

/* ---------- the page ---------- */

themeChanged();
drawCurves(find("charts"));
if (images) {
  prepareThumbnails();
  if (find("group-list")) drawGroups(galleries[0]);
  if (find("plane")) drawMap(galleries[0]);
  if (find("planes")) drawMaps(find("planes"));
  drawNeighbours();
  if (find("oddities")) drawOddities(galleries[0]);
}
})();
