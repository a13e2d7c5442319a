/* ---------- the selection, and taking images away ---------- */

const selection = new Set();  // images, by number
let selectionName = "selection";  // what its files are called

/** Take these images, instead of those taken before or in addition to them. */
function selectImages(list, { add = false, name = "selection" } = {}) {
  selectionName = add && selection.size ? "selection" : name;
  if (!add) selection.clear();
  for (const i of list) selection.add(i);
  selectionChanged();
}

const selectedInOrder = () => [...selection].sort((a, b) => images.rows[a] - images.rows[b]);

function selectionChanged() {
  const bar = find("selection");
  if (!bar) return;
  bar.hidden = selection.size === 0;
  document.body.classList.toggle("selecting", selection.size > 0);
  find("selection-count").textContent = selection.size ? `${counted(selection.size, "image")} selected` : "";
  for (const node of document.querySelectorAll("button.thumb")) node.classList.toggle("chosen", selection.has(Number(node.dataset.image)));
  for (const node of document.querySelectorAll("[data-toggles]")) node.setAttribute("aria-pressed", String(selection.has(Number(node.dataset.toggles))));
  planes.forEach((plane) => plane.draw());
}

function selectToggle(i) {
  return element("button", { type: "button", "data-toggles": i, "aria-pressed": String(selection.has(i)), onclick: () => mainPlane.takeAt(i) }, "Select");
}

/** Buttons that select these images. */
function selectButtons(list, name) {
  const done = element("span", { class: "soft", role: "status" });
  const act = (add) => { selectImages(list, { add, name }); done.textContent = `${counted(selection.size, "image")} selected`; };
  return element("div", { class: "controls" }, element("button", { type: "button", onclick: () => act(false) }, `Select ${list.length === 1 ? "this image" : `these ${whole(list.length)}`}`),
    element("button", { type: "button", onclick: () => act(true) }, "Add to selection"), done);
}

/* Lists of images, as commands read them. */

const csvField = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
function csvOf(list) {
  const gallery = galleries[0], word = "group";
  const rows = list.map((i) => [imageNames ? nameOf(i) : "", images.rows[i], gallery.group ? gallery.group[i] : "", gallery.group ? groupNames.get(gallery.group[i]) ?? "" : "", labelOf(i), flagsOf(i).join("; "), tagsOf(i).join("; ")]);
  return [["path", "row", word, "name", "label", "flags", "tags"], ...rows].map((row) => row.map((value) => csvField(String(value))).join(",")).join("\n") + "\n";
}
const oneLine = (text) => text.replace(/[\x00-\x1f\x7f-\x9f\u2028\u2029]/g, (sign) => `\\x${sign.charCodeAt(0).toString(16).padStart(2, "0")}`);
const pathsOf = (list) => list.map((i) => `${oneLine(nameOf(i))}\n`).join("");
const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
const asFileName = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "selection";

function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type })), link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // an old browser, or one that does not trust a file
    const area = element("textarea", { "aria-hidden": "true" });
    (dialog.open ? dialog : document.body).append(area);
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Buttons that copy or save a list of images, tag them, and give the command that links them into a folder. */
function takeAway(list, name = "selection") {
  const said = element("p", { class: "soft said", role: "status" }), file = () => asFileName(typeof name === "function" ? name() : name);
  const say = (...parts) => said.replaceChildren(...parts);
  const button = (text, title, act) => element("button", { type: "button", title, onclick: act }, text);
  const buttons = [button("Save CSV", "Path, row, group, label, flags and tags, one line per image", () => {
    download(`${file()}.csv`, csvOf(list()), "text/csv");
    say(`Saved ${file()}.csv with ${counted(list().length, "image")}.`);
  })];
  if (imageNames) {
    buttons.push(button("Save paths", "One path per line", () => { download(`${file()}.txt`, pathsOf(list()), "text/plain"); say(`Saved ${file()}.txt.`); }),
      button("Copy paths", "One path per line, to the clipboard", async () => { await copy(pathsOf(list())); say(`Copied ${counted(list().length, "path")}.`); }));
  }
  if (imageNames && images.base !== null) {
    buttons.push(button("Link into a folder", "Saves the list and gives the command", async () => {
      const command = `carl links ${shellWord(`${file()}.csv`)} ${shellWord(`${file()}-links`)} --base ${shellWord(images.base)}`;
      download(`${file()}.csv`, csvOf(list()), "text/csv");
      await copy(command);
      say(`Saved ${file()}.csv. Where it is, run this command (copied): `, element("code", {}, command));
    }));
  }
  const tag = element("input", { type: "text", maxlength: "100", placeholder: "Tag", "aria-label": "Tag for these images", list: "tags" });
  const set = () => {
    if (!tag.value.trim()) return;
    tagImages(tag.value.trim(), list());
    say(`Tagged ${counted(list().length, "image")} “${tag.value.trim()}”. Save the names to keep it.`);
    tag.value = "";
  };
  tag.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); set(); } });
  return element("div", { class: "take" }, element("div", { class: "controls" }, ...buttons, element("span", { class: "buttons" }, tag, button("Tag", "Remember these images under a name", set))), said);
}

function drawSelection() {
  const bar = find("selection");
  bar.append(element("div", { class: "selection-head" }, element("b", { id: "selection-count", role: "status" }),
    element("button", { type: "button", onclick: () => openList("Selected images", "What you selected, in the order of the data.", selectedInOrder(), selectionName) }, "Look at them"),
    element("button", { type: "button", id: "selection-clear", onclick: () => selectImages([]) }, "Clear")), takeAway(selectedInOrder, () => selectionName));
  selectionChanged();
}
