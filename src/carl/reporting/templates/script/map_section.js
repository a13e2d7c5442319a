/* ---------- the map's section ---------- */

let mainPlane = null;
let mapPlanes = [];  // those that legend and colours are for
let redrawLegend = () => {};

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
  const select = find("map-show");
  if (select && !shown) select.value = "all";
}

function legendButton(colour, name, fits) {
  const dot = element("span", { class: "dot" });
  dot.style.background = colour;
  const button = element("button", { type: "button", "aria-pressed": "false", title: `Show ${name} alone` }, dot, name);
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-pressed") === "true") showAlone(null);
    else showAlone(new Set([...Array(images.count).keys()].filter(fits)), button);
  });
  return button;
}

function drawLegend(gallery, by) {
  const legend = find("legend");
  legend.replaceChildren();
  if (by === "confidence") {
    const ramp = element("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(rampColour).join(", ")})`;
    legend.append("unsure", ramp, "sure");
  }
  if (by !== "label" && by !== "group") return;
  const dozen = dozenOf(gallery, by), of = by === "label" ? images.labels : gallery.group;
  const title = (number) => (by === "label" ? images.classes[number] : groupTitle(number));
  for (const [number, colour] of dozen) legend.append(legendButton(colour, title(number), (i) => of[i] === number));
  const others = new Set(of.slice(0, images.count).filter((number) => !dozen.has(number))).size;
  if (others) legend.append(legendButton(restColour(), `${whole(others)} smaller`, (i) => !dozen.has(of[i])));
}

function mapLead(gallery) {
  const some = images.count === images.total ? `All ${whole(images.count)}` : `${whole(images.count)} of ${whole(images.total)}`;
  const rest = images.listed > images.count ? " The other images are found by their group, their flags and their name." : "";
  return `${some} images, placed by what the encoder sees in them (${gallery.projection}). Images that lie close together look alike to it.${rest}`;
}

function colourSelect() {
  const select = find("map-colour"), gallery = galleries[0];
  choices(select, colourChoices(gallery), mapPlanes[0].by);
  const change = () => {
    for (const plane of mapPlanes) plane.by = select.value;
    drawLegend(gallery, select.value);
    showAlone(null);
  };
  redrawLegend = () => drawLegend(gallery, select.value);
  select.addEventListener("change", change);
  change();
}

/** Which images the map shows: all, the selected ones, those with a flag or without any. */
function showSelect() {
  const select = find("map-show"), flags = images.flags ? images.flag_list.map((flag, bit) => [`flag${bit}`, flag.name]).filter((_, bit) => images.flag_list[bit].count) : [];
  choices(select, [["all", "all images"], ["selected", "selected"], ...(flags.length ? [...flags, ["fine", "without any flag"]] : [])], "all");
  select.addEventListener("change", () => {
    const kind = select.value, bit = Number(kind.slice(4));
    const fits = { all: null, selected: (i) => selection.has(i), fine: (i) => !images.flags[i] }[kind] ?? ((i) => images.flags[i] >>> bit & 1);
    showAlone(kind === "all" ? null : new Set([...Array(images.count).keys()].filter(fits)));
  });
}

function chooseMode(mode) {
  mainPlane.setMode(mode);
  for (const name of MODES) find(`map-${name}`).setAttribute("aria-pressed", String(name === mode));
}

function takeOnMap(list, add) {
  selectImages(list, { add: add || find("map-add").checked });
}

const firstColour = () => (images.labels ? "label" : galleries[0].group ? "group" : "none");

function drawMap(gallery) {
  mainPlane = new Plane(find("plane"), gallery, { by: firstColour(), choose: chooseOnMap, take: takeOnMap });
  find("map-lead").textContent = mapLead(gallery);
  mapPlanes = [mainPlane];
  colourSelect();
  showSelect();
  for (const mode of MODES) find(`map-${mode}`).addEventListener("click", () => chooseMode(mode));
  chooseMode("move");
  find("map-pictures").addEventListener("change", (event) => { mainPlane.pictures = event.target.checked; mainPlane.draw(); });
  if (gallery.before_places) {
    find("map-start").addEventListener("change", (event) => { mainPlane.lay(event.target.checked ? gallery.before_places : gallery.places); mainPlane.draw(); });
  }
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
