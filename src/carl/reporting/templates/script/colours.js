/* ---------- colours ---------- */

// No one tells more than a dozen colours apart: the largest groups or classes have them, and the rest is grey.
const DOZEN = ["#4e79a7", "#f28e2b", "#e15759", "#59a14f", "#b07aa1", "#edc948", "#3aa6b9", "#ff7fa5", "#9c755f", "#3a56d4", "#8cb93c", "#a0258f"];
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];  // viridis
const restColour = () => (isDark() ? "#565e6c" : "#b4bac4");
const angleColour = (n) => `hsl(${(n * 137.508) % 360} ${55 + 15 * (n % 3)}% ${isDark() ? 64 : 46}%)`;

/** The commonest of these numbers, at most a dozen, the commonest first. */
function largest(numbers) {
  const counts = new Map();
  for (const number of numbers) if (number >= 0) counts.set(number, (counts.get(number) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, DOZEN.length).map(([number]) => number);
}
const remembered = new Map();
function dozenOf(gallery, by) {
  const key = by === "label" ? images : gallery;
  if (!remembered.has(key)) {
    const numbers = by === "label" ? images.labels : gallery.group.slice(0, images.count);
    // Few classes keep the colour of their number, so that pages of the same data look alike.
    const order = by === "label" && images.classes.length <= DOZEN.length ? images.classes.map((_, c) => c) : largest(numbers);
    remembered.set(key, new Map(order.map((number, place) => [number, DOZEN[place]])));
  }
  return remembered.get(key);
}

const classColour = (c) => (c < 0 ? restColour() : dozenOf(null, "label").get(c) ?? angleColour(c));
function rampColour(part) {
  const at = Math.max(0, Math.min(0.9999, part)) * (RAMP.length - 1), low = Math.floor(at), rest = at - low;
  return `rgb(${RAMP[low].map((v, k) => Math.round(v + rest * (RAMP[low + 1][k] - v))).join(" ")})`;
}

function colours(gallery, by) {
  const rest = restColour();
  if (by === "label") return images.labels.map((c) => dozenOf(gallery, by).get(c) ?? rest);
  if (by === "group") return gallery.group.slice(0, images.count).map((number) => dozenOf(gallery, by).get(number) ?? rest);
  if (by === "confidence") {
    const sorted = [...gallery.confidence].sort((a, b) => a - b), low = sorted[Math.floor(0.02 * sorted.length)], high = sorted[Math.floor(0.98 * sorted.length)];
    return gallery.confidence.map((value) => rampColour((value - low) / Math.max(1, high - low)));
  }
  return new Array(images.count).fill(isDark() ? "#6cb0f7" : "#1f6fc4");
}

function colourChoices(gallery) {
  return [...(images.labels ? [["label", "label"]] : []), ...(gallery.group ? [["group", groupWord(gallery)], ["confidence", "confidence"]] : []), ["none", "nothing"]];
}
