"use strict";
// Names live in the fields until they are saved as a file, which `carl group --names` reads.
const page = JSON.parse(document.getElementById("data").textContent);
const fields = [...document.querySelectorAll("input[data-group]")];
const save = document.getElementById("save");
const said = document.getElementById("said");
let unsaved = false;

function given() {
  const groups = {};
  for (const field of fields) {
    const name = field.value.trim();
    if (name) groups[field.dataset.group] = name;
  }
  return groups;
}

function show() {
  const count = Object.keys(given()).length;
  save.disabled = !count;
  said.textContent = `${count} of ${fields.length} groups named` + (unsaved ? ", not saved yet" : "");
}

for (const field of fields) {
  field.addEventListener("input", () => { unsaved = true; show(); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") (fields[fields.indexOf(field) + 1] || save).focus();
  });
}

save.addEventListener("click", () => {
  const names = { carl: "names", version: page.version, of: page.of, groups: given(), tags: page.tags };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(names, null, 2) + "\n"], { type: "application/json" }));
  link.download = page.file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  unsaved = false;
  show();
});

addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });
show();
