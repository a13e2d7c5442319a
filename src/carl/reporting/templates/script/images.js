/* ---------- one image, and lists of images ---------- */

const hasBefore = () => Boolean(galleries[0].before);  // neighbours by what the run is compared with: its start, or random weights
const beforeName = () => galleries[0].before_name;
const beforeIsRandom = () => galleries[0].before_is_random;
const ownName = () => (hasBefore() && !beforeIsRandom() ? "the adapted encoder" : "this encoder");  // which may not be the one that is kept
const likeBefore = () => (beforeIsRandom() ? "with random weights" : `to ${beforeName()}`);
const neighboursOf = (gallery, i, which = "neighbours") => (i < images.count ? (gallery[which] ?? galleries[0][which] ?? []).slice(i * gallery.near, (i + 1) * gallery.near) : []);
const groupOf = (gallery, number) => gallery.groups?.shown.find((group) => group.number === number);  // of very many only the largest
const membersOf = (gallery, number) => groupOf(gallery, number)?.members ?? gallery.group.flatMap((other, i) => (other === number ? [i] : []));
const groupWord = (gallery) => ({ "k-means": "cluster", prototypes: "prototype" })[gallery.grouping] ?? "group";

function describe(gallery, i) {
  const lines = labelOf(i) ? [labelOf(i)] : [];
  if (gallery.group) lines.push(`${groupWord(gallery)} ${groupTitle(gallery.group[i])}${i < images.count ? `, confidence ${(gallery.confidence[i] / 1000).toFixed(2)}` : ""}`);
  if (flagsOf(i).length) lines.push(flagsOf(i).join(", "));
  return lines;
}

/** An image with its neighbours by the encoder and by what it is compared with; `go` is called for an image clicked. */
function imageView(gallery, i, go) {
  const strip = (which) => element("div", { class: "eight", "data-by": which }, ...neighboursOf(gallery, i, which).map((j) => thumb(j, go, i)));
  const text = element("div", {}, element("p", { class: "name" }, fileName(nameOf(i))));
  if (labelOf(i)) text.append(element("p", {}, labelOf(i)));
  if (gallery.group) {
    const title = `${groupWord(gallery)} ${groupTitle(gallery.group[i])}`;
    if (i < images.count) text.append(element("p", { class: "soft" }, `confidence ${(gallery.confidence[i] / 1000).toFixed(2)}`));
    text.append(element("p", {}, groupOf(gallery, gallery.group[i]) ? element("button", { type: "button", onclick: () => openGroup(gallery.group[i]) }, title) : title));
  }
  for (const flag of flagsOf(i)) text.append(element("span", { class: "marker" }, flag), " ");
  for (const tag of tagsOf(i)) text.append(element("span", { class: "marker tag" }, tag), " ");
  if (find("selection")) text.append(element("p", {}, selectToggle(i)));
  const subject = element("div", { class: "subject", "data-image": i, tabindex: "-1" }, plainThumb(i), text);
  if (i >= images.count) return [subject, element("p", { class: "soft" }, `The map and the neighbours show ${whole(images.count)} of the images. This one is not among them.`)];
  const nearest = gallery.near ? ` (cosine similarity ${(gallery.nearest[i] / 1000).toFixed(2)} to the first)` : "";
  return [subject,
    element("h4", {}, `Most alike to ${ownName()}`, element("span", { class: "soft" }, nearest)), strip("neighbours"),
    ...(hasBefore() ? [element("h4", {}, `Most alike ${likeBefore()}`), strip("before")] : [])];
}

const dialog = find("dialog");
function openDialog(title, ...content) {
  hideTip();
  dialog.replaceChildren(element("div", { class: "dialog-head" }, element("h2", { id: "dialog-title", tabindex: "-1" }, title),
    element("button", { type: "button", onclick: () => dialog.close() }, "Close")), ...content.filter(Boolean));
  const again = dialog.open;
  if (!again) dialog.showModal();
  dialog.scrollTop = 0;
  if (again) find("dialog-title").focus();  // what had it is gone
}
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

function openImage(i, gallery = galleries[0]) {
  openDialog("Image", ...imageView(gallery, i, (j) => openImage(j, gallery)),
    mainPlane && i < images.count ? element("p", {}, element("button", { type: "button", onclick: () => { dialog.close(); chooseOnMap(i); find("map").scrollIntoView(); } }, "Show on the map")) : null);
}

const PAGE = 60;

/** Thumbnails, a page at a time, with their names where `named`; any number of images can be looked through. */
function pagedThumbs(list, { named = false, open = (i) => openImage(i) } = {}) {
  const host = element("div", { class: named ? "members named" : "members" }), status = element("span", { class: "soft", role: "status" });
  let start = 0;
  const back = element("button", { type: "button", onclick: () => show(start - PAGE) }, "Previous"), on = element("button", { type: "button", onclick: () => show(start + PAGE) }, "Next");
  function show(from) {
    start = Math.max(0, from);
    host.replaceChildren(...list.slice(start, start + PAGE).map((i) => (named ? element("figure", {}, thumb(i, open), element("figcaption", {}, fileName(nameOf(i).split("/").at(-1)))) : thumb(i, open))));
    status.textContent = `${whole(start + 1)} to ${whole(Math.min(start + PAGE, list.length))} of ${whole(list.length)}`;
    [back.disabled, on.disabled] = [start === 0, start + PAGE >= list.length];
  }
  show(0);
  return list.length > PAGE ? [host, element("div", { class: "controls pager" }, back, on, status)] : [host];
}

/** A dialog with these images, and all that can be done with them. */
function openList(title, lead, list, name) {
  if (!list.length) return openDialog(title, element("p", { class: "lead" }, lead), element("p", {}, "No image."));
  openDialog(title, element("p", { class: "lead" }, lead), selectButtons(list), takeAway(() => list, name), ...pagedThumbs(list, { named: true }));
}
