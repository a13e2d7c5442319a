/* ---------- find images: names, tags, flags ---------- */

const FOUND = 24;  // images of an answer shown at once

/** Images whose path, label, group name, flags or tags hold every word of the query. */
function searched(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean), gallery = galleries[0], found = [];
  if (!words.length) return found;
  for (let i = 0; i < images.listed; i++) {
    const group = gallery.group ? groupNames.get(gallery.group[i]) ?? "" : "";
    const text = `${nameOf(i)} ${labelOf(i)} ${group} ${images.flags?.[i] ? flagsOf(i).join(" ") : ""} ${tags.size ? tagsOf(i).join(" ") : ""}`.toLowerCase();
    if (words.every((word) => text.includes(word))) found.push(i);
  }
  return found.sort((a, b) => images.rows[a] - images.rows[b]);
}

function drawFind() {
  const field = find("query"), host = find("found");
  let wait = 0;
  const draw = () => {
    const query = field.value.trim(), list = searched(query);
    if (!query) return host.replaceChildren();
    const onMap = list.filter((i) => i < images.count);
    const buttons = [element("button", { type: "button", onclick: () => openList(`Found: ${query}`, `Images whose path, label, group, flags or tags hold “${query}”.`, list, query) }, "See all"),
      element("button", { type: "button", id: "found-select", onclick: () => selectImages(list, { name: query }) }, "Select all"),
      element("button", { type: "button", onclick: () => { showAlone(new Set(onMap)); find("map").scrollIntoView(); } }, "Show on the map")];
    host.replaceChildren(element("p", { role: "status" }, `${counted(list.length, "image")} found`), list.length ? element("div", { class: "controls" }, ...buttons) : "",
      element("div", { class: "members named" }, ...list.slice(0, FOUND).map((i) => element("figure", {}, thumb(i, (j) => openImage(j)), element("figcaption", {}, fileName(nameOf(i).split("/").at(-1)))))));
  };
  field.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(draw, 120); });
  field.addEventListener("keydown", (event) => { if (event.key === "Escape") { field.value = ""; draw(); } else if (event.key === "Enter") draw(); });
}

/** A row of counts, each of which opens its images. */
function drawFlags() {
  find("flags").replaceChildren(...images.flag_list.map((flag, bit) => {
    const properties = { type: "button", class: "flag", "data-flag": bit, onclick: () => openFlag(bit) };
    if (!flag.count) properties.disabled = "";
    return element("button", properties, element("span", { class: "value" }, whole(flag.count)), element("span", { class: "name" }, flag.name), element("span", { class: "soft" }, flag.words));
  }));
}

function openFlag(bit) {
  const flag = images.flag_list[bit], list = [];
  for (let i = 0; i < images.listed; i++) if (images.flags[i] >>> bit & 1) list.push(i);
  list.sort((a, b) => images.rows[a] - images.rows[b]);
  const part = list.length < flag.count ? ` This page lists ${whole(list.length)} of the ${whole(flag.count)}.` : "";
  const repeated = new Map(images.duplicate_of), pairs = list.filter((i) => repeated.has(i));
  openList(`${flag.name} (${whole(flag.count)})`, flag.words + part, list, flag.name);
  if (!pairs.length) return;
  const shown = pairs.slice(0, PAGE).map((i) => element("figure", {}, element("div", { class: "pair" }, thumb(repeated.get(i), (j) => openImage(j)), thumb(i, (j) => openImage(j))),
    element("figcaption", {}, fileName(nameOf(i).split("/").at(-1)))));
  dialog.append(element("h4", {}, `The image that stays, beside its repetition${pairs.length > PAGE ? ` (the first ${PAGE})` : ""}`), element("div", { class: "pairs" }, ...shown));
}

/* ---------- outliers and pairs that are almost the same ---------- */

function drawOddities(gallery) {
  const host = find("oddities");
  const strip = (title, text, list, caption, name) => host.append(element("h3", {}, title), element("p", { class: "lead" }, text),
    element("div", { class: "odd" }, ...list.map((i) => element("figure", {}, thumb(i, (j) => openImage(j)), element("figcaption", {}, caption(i))))), selectButtons(list, name));
  if (gallery.unwanted) {
    const prototypes = gallery.grouping === "prototypes";
    strip(prototypes ? "Images that fit no prototype" : "Images far from every group", prototypes ? "Even their best prototype is unlikely. Its probability is written below." : "They are the least like the centre of their own group. The cosine similarity is written below.",
      gallery.unwanted, (i) => (gallery.confidence[i] / 1000).toFixed(2), "fit-nowhere");
  }
  strip("Images unlike any other", "Even the image most like them is not very like them. The cosine similarity is written below.", gallery.lonely, (i) => (gallery.near ? (gallery.nearest[i] / 1000).toFixed(2) : ""), "unlike-any-other");
  const { count, shown } = gallery.pairs, [cosine, correlation] = gallery.pair_thresholds;
  const among = images.count === images.total ? `Of all ${whole(images.count)} images, ` : `Of this sample of ${whole(images.count)} of the ${whole(images.total)} images, `;
  const rule = `alike to the encoder (cosine of at least ${cosine}, whitened) and in their coarse pixels (correlation of at least ${correlation})`;
  host.append(element("h3", {}, "Pairs that are almost the same"), element("p", { class: "lead" },
    `${among}${count ? `${whole(count)} pair${count === 1 ? " is" : "s are"} ${rule}${count > shown.length ? `; the closest ${shown.length} are shown` : ""}` : `no two images are ${rule}`}.`));
  host.append(element("div", { class: "pairs" }, ...shown.map(([a, b, alike, same]) => element("figure", {},
    element("div", { class: "pair" }, thumb(a, (j) => openImage(j)), thumb(b, (j) => openImage(j))),
    element("figcaption", {}, `cosine ${alike.toFixed(2)}, pixels ${same.toFixed(2)}`)))));
  const second = gallery.pairs.seconds;
  if (second.length) host.append(element("p", { class: "soft" }, "Of each pair, the second can be selected; the first stays."), selectButtons(second, "almost-the-same"));
}
