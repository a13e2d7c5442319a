/* ---------- neighbours ---------- */

function answer(gallery, i, which, name) {
  const row = element("div", { class: "row8", "data-by": name }, ...neighboursOf(gallery, i, which).map((j) => thumb(j, (k) => openImage(k, gallery), i)));
  return row;
}

function queryRow(i) {
  const asked = element("div", { class: "asked" }, thumb(i, (j) => openImage(j)), element("span", {}, images.labels ? labelOf(i) : fileName(nameOf(i).split("/").at(-1))));
  if (galleries.length === 1) return element("div", { class: "query" }, asked, answer(galleries[0], i, "neighbours", ownName()), hasBefore() ? answer(galleries[0], i, "before", beforeName()) : null);
  const rows = galleries.map((gallery, place) => element("div", { class: "answer" }, element("span", {}, element("span", { class: `dot run${place % 8}` }), data.runs[place]), answer(gallery, i, "neighbours", "")));
  if (hasBefore()) rows.push(element("div", { class: "answer soft" }, beforeName(), answer(galleries[0], i, "before", "")));
  return element("div", { class: "query many" }, asked, element("div", {}, ...rows));
}

function drawNeighbours() {
  const lead = find("neighbours-lead"), host = find("queries");
  const same = galleries.map((gallery) => gallery.same_label), near = galleries[0].near;
  let text = `Each row shows an image and the ${near} images that ${galleries.length > 1 ? "each encoder finds" : `${ownName()} finds`} most like it${!hasBefore() ? "" : beforeIsRandom() ? ", beside those that the same encoder finds with random weights" : `, beside those that ${beforeName()} finds`}.`;
  if (same[0]) {
    const parts = same.map((s, place) => `${percent(s.trained)}${galleries.length > 1 ? ` (${data.runs[place]})` : ""}`);
    text += ` A green frame means the same label. Over all images, ${parts.join(", ")} of the neighbours have it, against ${[same[0].start === undefined ? "" : `${percent(same[0].start)} with ${beforeName()}, `, same[0].random === undefined ? "" : `${percent(same[0].random)} with random weights and `].join("")}${percent(same[0].chance)} by chance.`;
  }
  lead.textContent = text;
  const count = galleries.length === 1 ? images.queries.length : 4;
  function draw(queries) {
    const head = galleries.length === 1 ? [element("div", { class: "query head" }, element("span"), element("span", {}, `most alike to ${ownName()}`), hasBefore() ? element("span", {}, `most alike ${likeBefore()}`) : null)] : [];
    host.replaceChildren(...head, ...queries.map(queryRow));
  }
  let turn = 0;
  find("other-queries").addEventListener("click", () => {
    turn += 1;
    draw(images.queries.slice(0, count).map((query, k) => (query + 7919 * turn + 104729 * k * turn) % images.count));
  });
  draw(images.queries.slice(0, count));
}

