/* ---------- keys ---------- */

const KEYS = [
  ["?", "this list"], ["/", "find images by name"], ["m", "go to the map"], ["Escape", "close a window, clear the search, or show the whole map"],
  ["Arrow keys", "on the map: go from image to image; on a curve: from value to value"], ["Enter", "on the map: show the neighbours of the image"],
  ["Space", "on the map: select the image, or take it out of the selection"], ["g", "on the map: select the whole group of the image"],
  ["b, l, v", "on the map: drag a box, draw a lasso, move the map"], ["Shift", "while dragging: draw a lasso and add to the selection"], ["+ and −", "on the map: zoom"],
];

function openKeys() {
  openDialog("Keys", element("table", { class: "keys" }, element("tbody", {}, ...KEYS.map(([key, text]) => element("tr", {}, element("th", { scope: "row" }, element("kbd", {}, key)), element("td", {}, text))))));
}

function listenToKeys() {
  find("keys").addEventListener("click", openKeys);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || event.target.matches("input, select, textarea")) return;
    const act = { "?": openKeys, "/": () => find("query").focus(), m: () => { find("map").scrollIntoView(); find("plane").focus({ preventScroll: true }); } }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
