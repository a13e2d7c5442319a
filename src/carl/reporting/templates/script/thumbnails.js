/* ---------- thumbnails ---------- */

// Images 0 to count - 1 are the sample: on the map, with neighbours. Others are listed only, with smaller thumbnails.
const sheets = images ? images.sheets : null;
const loadedSheets = new Map();

function prepareThumbnails() {
  const style = document.styleSheets[0], smooth = images.pixelated ? "image-rendering: pixelated;" : "";
  const size = (of) => `background-size: ${100 * of.columns * of.cell_width / of.width}% ${100 * of.rows * of.cell_height / of.height}%;`;
  style.insertRule(`.thumb { aspect-ratio: ${sheets.width} / ${sheets.height}; ${size(sheets)} ${smooth} }`, style.cssRules.length);
  if (images.small) style.insertRule(`.thumb.listed { aspect-ratio: ${images.small.width} / ${images.small.height}; ${size(images.small)} }`, style.cssRules.length);
}

function cell(i) {
  const own = i < images.count, of = own ? sheets : images.small, place = own ? i : i - images.count;
  const number = Math.floor(place / (of.columns * of.rows)), local = place % (of.columns * of.rows);
  return { of, number, key: `${own ? "sheet" : "listed"}${number}`, left: (local % of.columns) * of.cell_width, top: Math.floor(local / of.columns) * of.cell_height };
}

/** The sheet of a thumbnail, decoded once something on it is wanted: a page with many opens sooner. */
function sheetOf({ of, number, key }) {
  if (!loadedSheets.has(key)) {
    const image = new Image(), style = document.styleSheets[0];
    image.addEventListener("load", () => planes.forEach((plane) => plane.draw()));
    image.src = of.images[number];
    style.insertRule(`@media screen { .${key} { background-image: url("${of.images[number]}"); } }`, style.cssRules.length);
    loadedSheets.set(key, image);
  }
  return loadedSheets.get(key);
}

function asThumb(node, i) {
  const at = cell(i), { of, left, top } = at;
  sheetOf(at);
  node.classList.add("thumb", at.key);
  node.classList.toggle("listed", i >= images.count);
  node.dataset.image = i;
  node.style.backgroundPosition = `${100 * left / (of.columns * of.cell_width - of.width)}% ${100 * top / (of.rows * of.cell_height - of.height)}%`;
  return node;
}

/** The thumbnail as a canvas of its own: a printer decodes a whole sheet again for every thumbnail cut from it. */
function drawnThumb(node) {
  const at = cell(Number(node.dataset.image)), { of, left, top } = at, image = sheetOf(at);
  if (!image.complete) return;
  const canvas = element("canvas", { width: of.width, height: of.height });
  canvas.getContext("2d").drawImage(image, left, top, of.width, of.height, 0, 0, of.width, of.height);
  node.replaceChildren(canvas);
}

/** Names share their beginning with the name before them; only the rest is written. */
function readNames({ shared, rest }) {
  const names = [];
  let before = "";
  for (let i = 0; i < rest.length; i++) names.push((before = before.slice(0, shared[i]) + rest[i]));
  return names;
}

const imageNames = images?.names ? readNames(images.names) : null;
const labelOf = (i) => (images.labels && images.labels[i] >= 0 ? images.classes[images.labels[i]] : "");
const nameOf = (i) => (imageNames ? imageNames[i] : `image ${images.rows[i]}`);
const captionOf = (i) => (labelOf(i) ? `${nameOf(i)} (${labelOf(i)})` : nameOf(i));
const flagsOf = (i) => (images.flags ? images.flag_list.filter((_, bit) => images.flags[i] >>> bit & 1).map((flag) => flag.name) : []);

/** A thumbnail to click; `asked` is the image whose label it is compared with. */
function thumb(i, go, asked) {
  const node = asThumb(element("button", { type: "button", title: captionOf(i), "aria-label": captionOf(i), onclick: () => go(i) }), i);
  if (asked !== undefined && labelOf(asked) && labelOf(i)) node.classList.toggle("same", images.labels[i] === images.labels[asked]);
  node.classList.toggle("chosen", selection.has(i));
  return node;
}

const plainThumb = (i) => asThumb(element("span"), i);
