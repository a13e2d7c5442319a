/* ---------- groups: prototypes or clusters ---------- */

const MANY = 60;  // cards that one click adds
const SORTS = {
  size: ["size", (a, b) => b.members.length - a.members.length], purity: ["purity", (a, b) => (b.purity ?? -1) - (a.purity ?? -1) || b.members.length - a.members.length],
  confidence: ["confidence", (a, b) => b.confidence - a.confidence], number: ["number", (a, b) => a.number - b.number],
};
const has = (group, kind) => group.marks.some((mark) => mark.kind === kind);
const labelled = (group) => (group.purity ?? null) !== null;  // whether any of its images has a label
const markText = (mark) => (mark.kind === "twin" ? `twin of #${mark.of}` : mark.kind);

function groupCard(gallery, group) {
  const size = group.members.length, empty = !size;
  const figures = empty ? "no image chose it; these come nearest" : [`confidence ${group.confidence.toFixed(2)}`, ...(labelled(group) ? [`purity ${percent(group.purity)}`] : [])].join(" \u00b7 ");
  const card = element("button", { type: "button", class: `card${empty ? " empty" : ""}`, "data-group": group.number, onclick: () => openGroup(group.number) },
    element("span", { class: "head" }, element("b", {}, groupTitle(group.number)), ...group.marks.map((mark) => element("span", { class: `marker ${mark.kind}` }, markText(mark))), element("span", { class: "size" }, counted(size, "image"))),
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
  if (images.flags) images.flag_list.forEach((flag, bit) => { if (flag.count) filter.append(element("option", { value: `flag${bit}` }, `with images that are: ${flag.name}`)); });
  let shown = 24;
  const flagged = (group, bit) => group.members.some((i) => images.flags[i] >>> bit & 1);
  function fits(group, kind) {
    if (kind === "all") return true;
    if (kind === "used") return group.members.length > 0;
    return kind.startsWith("flag") ? flagged(group, Number(kind.slice(4))) : has(group, kind);
  }
  function draw() {
    const wanted = groups.filter((group) => fits(group, filter.value));
    wanted.sort(SORTS[sort.value][1]);
    list.replaceChildren(...wanted.slice(0, shown).map((group) => groupCard(gallery, group)));
    more.hidden = wanted.length <= shown;
    find("group-count").textContent = `${Math.min(shown, wanted.length)} of ${wanted.length} shown; ${used} of ${count} chosen by at least one image${images.listed < images.total ? " of the sample" : ""}`;
  }
  for (const select of [sort, filter]) select.addEventListener("change", () => { shown = 24; draw(); });
  more.addEventListener("click", () => { shown += MANY; draw(); });
  if (part) {
    const marked = Object.entries(kinds).map(([kind, number]) => `${number.toLocaleString("en")} ${kind}`).join(", ");
    find("group-part").textContent = `This page holds the largest ${groups.length.toLocaleString("en")} of ${count.toLocaleString("en")}${marked ? `; of all, ${marked}` : ""}.`;
  }
  redrawGroups = draw;
  draw();
}
let redrawGroups = () => {};

function openGroup(number) {
  const gallery = galleries[0], group = groupOf(gallery, number), size = group.members.length;
  const word = groupWord(gallery), listed = size ? group.members : group.best, title = () => `${word[0].toUpperCase()}${word.slice(1)} ${groupTitle(number)}`;
  const canvas = element("canvas", { role: "img", "aria-label": `Where the images of ${word} ${number} lie on the map` });
  const left = element("div", {}, element("p", {}, size ? `${whole(size)} of ${whole(images.listed)} images, mean confidence ${group.confidence.toFixed(2)}` : "No image chose it. These come nearest."),
    ...group.marks.map((mark) => element("p", {}, element("span", { class: `marker ${mark.kind}` }, markText(mark)), " ",
      mark.kind === "twin" && groupOf(gallery, mark.of) ? element("button", { type: "button", onclick: () => openGroup(mark.of) }, `Open #${mark.of}`) : null)));
  if (find("names")) {
    const name = element("input", { type: "text", id: "group-name", maxlength: "100", placeholder: "none yet" });
    name.value = groupNames.get(number) ?? "";
    name.addEventListener("change", () => { nameGroup(number, name.value.trim()); find("dialog-title").textContent = title(); });
    name.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); name.blur(); } });
    left.append(element("p", {}, element("label", {}, "Name ", name)));
  }
  if (labelled(group)) {
    left.append(element("h4", {}, `Classes (purity ${percent(group.purity)})`), ...group.classes.map(([c, part]) => element("div", { class: "share" }, element("span", { title: images.classes[c] }, images.classes[c]), classBar([[c, part]]), element("span", {}, percent(part)))));
  }
  if (size && find("selection")) left.append(selectButtons(listed, `${word}-${number}`), takeAway(() => listed, () => groupNames.get(number) ?? `${word}-${number}`));
  const right = element("div", {}, canvas, element("p", {}, element("button", { type: "button", onclick: () => showOnMap(group) }, "Show on the map")));
  openDialog(title(), element("div", { class: "group-body" }, left, right),
    element("h4", {}, images.listed > images.count ? "Images, the surest first; after them those that are not on the map" : "Images, the surest first"), ...pagedThumbs(listed));
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

