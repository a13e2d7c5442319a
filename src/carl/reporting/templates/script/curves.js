/* ---------- curves ---------- */

const WIDTH = 360, HEIGHT = 176, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 24;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

/** The ticks as text, with as many digits as tell them apart. */
function tickTexts(values) {
  const step = values.length > 1 ? values[1] - values[0] : Math.abs(values[0]) || 1;
  const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9)));
  const largest = Math.max(...values.map(Math.abs));
  if (largest && (largest < 1e-4 || largest >= 1e7)) return values.map((value) => String(Number(value.toPrecision(4))));
  return values.map((value) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

/** Where all charts end, so that they stand below each other and a single point has an axis too. */
function lastEpoch() {
  return Math.max(...data.charts.flatMap((chart) => chart.series.flatMap((line) => line.points.map((p) => p[0])))) || 1;
}

function chartFigure(chart) {
  const values = chart.series.flatMap((line) => line.points.map((p) => p[1]));
  if (chart.mark) values.push(chart.mark.value);
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low <= 1e-9 * Math.abs(high)) {
    const half = 0.1 * Math.abs(high) || 0.5;
    [low, high] = [low - half, high + half];
  }
  const margin = 0.06 * (high - low), end = lastEpoch();
  [low, high] = [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  const levels = ticks(low, high, 4), levelTexts = tickTexts(levels);
  const left = Math.max(LEFT, 10 + 7 * Math.max(...levelTexts.map((text) => text.length)));
  const x = (epoch) => left + (WIDTH - left - RIGHT) * epoch / end;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);

  const svg = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": description(chart) });
  for (const [place, value] of levels.entries()) {
    svg.append(drawing("line", { class: "grid", x1: left, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      drawing("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, levelTexts[place]));
  }
  const epochs = ticks(0, end, 5), epochTexts = tickTexts(epochs);
  for (const [place, epoch] of epochs.entries()) svg.append(drawing("text", { x: x(epoch), y: HEIGHT - 8, "text-anchor": epoch > 0.97 * end ? "end" : "middle" }, epochTexts[place]));
  if (chart.mark) {
    svg.append(drawing("line", { class: "mark", x1: left, x2: WIDTH - RIGHT, y1: y(chart.mark.value), y2: y(chart.mark.value) }),
      drawing("text", { x: WIDTH - RIGHT, y: y(chart.mark.value) + 13, "text-anchor": "end" }, chart.mark.name));
  }
  const both = new Set(chart.series.map((line) => line.kind)).size > 1;
  for (const line of chart.series) {
    const group = drawing("g", { class: `run${line.run % 8} ${line.kind}${both && line.kind === "step" && data.runs.length === 1 ? " behind" : ""}` });
    group.append(drawing("polyline", { points: line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }));
    if (line.points.length === 1 || (line.kind === "probe" && line.points.length <= 50)) {
      for (const [a, b] of line.points) group.append(drawing("circle", { cx: x(a), cy: y(b), r: 2.6 }));
    }
    svg.append(group);
  }
  followPointer(svg, chart, x, left, end);
  const last = data.runs.length === 1 ? figure(chart.series.at(-1).points.at(-1)[1]) : "";
  return element("figure", { class: "chart", "data-key": chart.key }, element("figcaption", {}, element("span", {}, chart.title), element("output", {}, last)), svg);
}

function description(chart) {
  const lines = chart.series.map((line) => `${data.runs[line.run]} ${line.name}: ${figure(line.points[0][1])} to ${figure(line.points.at(-1)[1])}`);
  return `${chart.title} over the epochs. ${lines.join("; ")}`;
}

function followPointer(svg, chart, x, left, end) {
  const cursor = drawing("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  const epochs = [...new Set(chart.series.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
  let place = epochs.length - 1;
  const nearest = (list, epoch, of) => list.reduce((best, item) => (Math.abs(of(item) - epoch) < Math.abs(of(best) - epoch) ? item : best));
  function show(clientY) {
    const epoch = epochs[place], box = svg.getBoundingClientRect();
    cursor.setAttribute("x1", x(epoch));
    cursor.setAttribute("x2", x(epoch));
    cursor.setAttribute("visibility", "visible");
    const rows = chart.series.map((line) => {
      const [, value] = nearest(line.points, epoch, (p) => p[0]);
      const name = data.runs.length > 1 ? data.runs[line.run] : line.name;
      return element("div", {}, element("span", { class: `dot run${line.run % 8}` }), `${name}: ${figure(value)}`);
    });
    showTip(box.left + box.width * x(epoch) / WIDTH, clientY ?? box.top + box.height / 2, element("b", {}, `epoch ${figure(epoch)}`), ...rows);
  }
  function leave() { cursor.setAttribute("visibility", "hidden"); hideTip(); }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const epoch = ((event.clientX - box.left) * WIDTH / box.width - left) / (WIDTH - left - RIGHT) * end;
    place = epochs.indexOf(nearest(epochs, epoch, (e) => e));
    show(event.clientY);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    place = Math.max(0, Math.min(epochs.length - 1, place + step));
    show();
  });
}

function drawCurves(host) {
  if (!data.charts.length) return host.append(element("p", { class: "note" }, "Nothing was logged yet."));
  if (data.runs.length > 1) host.append(element("div", { class: "key" }, ...data.runs.map((name, place) => element("span", {}, element("span", { class: `dot run${place % 8}` }), name))));
  else if (data.charts.some((chart) => chart.series.length > 1)) host.append(element("p", { class: "lead" }, "Each curve runs over the epochs. The pale line is the mean over training batches. The strong line with dots is the probe: it is measured on a fixed sample of images."));
  for (const name of new Set(data.charts.map((chart) => chart.group))) {
    const shown = element("div", { class: "charts" }, ...data.charts.filter((chart) => chart.group === name).map(chartFigure));
    if (name === "More figures") host.append(element("details", {}, element("summary", {}, name), shown));
    else host.append(element("h3", {}, name), shown);
  }
}

