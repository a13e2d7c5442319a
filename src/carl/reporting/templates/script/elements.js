const data = JSON.parse(document.getElementById("data").textContent);
const { images, galleries, names: givenNames } = data;
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
const whole = (number) => number.toLocaleString("en");
const counted = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;

/** A file name that may be broken anywhere except at its end: an extension stays whole. */
function fileName(name) {
  const end = name.match(/[^/]{0,4}\.[A-Za-z0-9]{1,5}$/)?.[0] ?? "";
  return element("span", { class: "file" }, name.slice(0, name.length - end.length), end ? element("span", { class: "whole" }, end) : null);
}

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
    if (images) document.querySelectorAll(".thumb").forEach(state ? drawnThumb : (node) => node.replaceChildren());
  });
}

