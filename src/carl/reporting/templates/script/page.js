/* ---------- the page ---------- */

themeChanged();
if (find("charts")) drawCurves(find("charts"));
if (images) {
  prepareThumbnails();
  if (find("plane")) {
    drawSelection();
    drawNames();
    listenToKeys();
    drawFind();
  }
  if (find("flags")) drawFlags();
  if (find("group-list")) drawGroups(galleries[0]);
  if (find("plane")) drawMap(galleries[0]);
  if (find("planes")) drawMaps(find("planes"));
  drawNeighbours();
  if (find("oddities")) drawOddities(galleries[0]);
}
