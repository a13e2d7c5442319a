/* ---------- names of groups and tags of images ---------- */

const groupNames = new Map(Object.entries(givenNames?.groups ?? {}).map(([number, name]) => [Number(number), name]));
const tags = new Map(Object.entries(givenNames?.tags ?? {}).map(([tag, list]) => [tag, new Set(list)]));
let unsaved = false;

const groupTitle = (number) => (groupNames.has(number) ? `#${number} ${groupNames.get(number)}` : `#${number}`);
const tagsOf = (i) => [...tags].filter(([, members]) => members.has(i)).map(([tag]) => tag);

function nameGroup(number, name) {
  if ((groupNames.get(number) ?? "") === name) return;
  if (name) groupNames.set(number, name);
  else groupNames.delete(number);
  namesChanged();
}

function tagImages(tag, list) {
  if (!tags.has(tag)) tags.set(tag, new Set());
  for (const i of list) tags.get(tag).add(i);
  namesChanged();
}

function namesChanged(changed = true) {
  unsaved = unsaved || changed;
  const bar = find("names");
  if (!bar) return;
  bar.hidden = !unsaved;
  find("names-said").textContent = `${counted(groupNames.size, "group name")} and ${counted(tags.size, "tag")} on this page are not saved yet.`;
  redrawGroups();
  redrawLegend();
  drawTags();
}

/** names.json, as records/given_names.py reads it. */
function namesFile() {
  const elsewhere = givenNames?.elsewhere ?? {};  // images with these tags that this page does not list
  const all = [...new Set([...tags.keys(), ...Object.keys(elsewhere)])];
  const paths = (tag) => [...(elsewhere[tag] ?? []), ...[...(tags.get(tag) ?? [])].map(nameOf)];
  return JSON.stringify({ carl: "names", version: 1, of: givenNames?.of ?? "", groups: Object.fromEntries([...groupNames].sort((a, b) => a[0] - b[0])), tags: Object.fromEntries(all.map((tag) => [tag, paths(tag)])) }, null, 2) + "\n";
}

function saveNames() {
  download("names.json", namesFile(), "application/json");
  unsaved = false;
  find("names").hidden = true;
}

function drawNames() {
  find("names").append(element("span", { id: "names-said", role: "status" }), element("button", { type: "button", id: "names-save", onclick: saveNames }, "Save names.json"));
  addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });
  drawTags();
}

function drawTags() {
  const host = find("tag-list");
  if (!host) return;
  find("tags").replaceChildren(...[...tags.keys()].map((tag) => element("option", { value: tag })));
  host.replaceChildren(...[...tags].map(([tag, members]) => element("span", { class: "buttons" },
    element("button", { type: "button", class: "chip", onclick: () => openList(`Tag “${tag}”`, "Images that you tagged.", [...members], tag) }, `${tag} (${whole(members.size)})`),
    element("button", { type: "button", class: "chip", "aria-label": `Remove the tag ${tag}`, title: "Remove the tag", onclick: () => { tags.delete(tag); delete givenNames?.elsewhere?.[tag]; namesChanged(); } }, "×"))));
}
