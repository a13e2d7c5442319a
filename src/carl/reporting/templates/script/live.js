/* ---------- news, while a run trains ---------- */

// Every few seconds the server is asked whether the run directory has changed. Then the figures and curves are taken from
// the new page. Once there are images, or other ones, the page is loaded again.
const EVERY = 3000;
const live = find("live");
let version = live.dataset.version;

async function askForNews() {
  try {
    const state = await (await fetch("state")).json();
    find("live-note").textContent = state.note;
    if (state.version === version) return;
    const page = new DOMParser().parseFromString(await (await fetch("")).text(), "text/html");
    const text = page.getElementById("data")?.textContent;
    if (!text) return;
    const news = JSON.parse(text);
    if (Boolean(news.images) !== Boolean(images) || page.getElementById("live").dataset.images !== live.dataset.images) return location.reload();
    for (const id of ["glance"]) find(id).replaceWith(document.adoptNode(page.getElementById(id)));
    data.charts = news.charts;
    find("charts").replaceChildren();
    drawCurves(find("charts"));
    version = state.version;
    root.dataset.news = Number(root.dataset.news ?? 0) + 1;
  } catch {
    find("live-note").textContent = "carl report --watch no longer answers; start it again to go on watching.";
  }
}
setInterval(askForNews, EVERY);
askForNews();
