// Maps of rows and columns that can be pointed at: with the mouse, or with the arrow keys when one has the focus.

const DIVERGING = [[33, 102, 172], [103, 169, 207], [247, 247, 247], [239, 138, 98], [178, 24, 43]];
const WEIGHT = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const KNOWN = [[176, 32, 32], [224, 160, 60], [240, 230, 140], [110, 180, 120], [16, 112, 64]];

function shade(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((part, i) => Math.round(part + (place - low) * (stops[low + 1][i] - part)));
}

function scale(stops, from, to) {
  const strip = `linear-gradient(to right, ${stops.map((stop) => `rgb(${stop.join(",")})`).join(",")})`;
  return make("div", { class: "scale" }, from, make("span", { class: "strip", style: `background: ${strip}` }), to);
}

// rows, columns: names; at(row, column) → [red, green, blue] or null; says(row, column) → what the cell is;
// outlined(row, column) → does it have a frame; frame: its colour; picked(row, column): it was clicked; x, y: the axes.
function heat({ rows, columns, at, says, outlined, frame, picked, x, y, label }) {
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": label });
  const output = make("output", { text: "Point at a cell, or move with the arrow keys." });
  const box = make("div", { class: "heat" }, canvas, output);
  const cells = make("canvas", { width: columns.length, height: rows.length });
  const image = cells.getContext("2d").createImageData(columns.length, rows.length);
  for (let r = 0; r < rows.length; r++) for (let c = 0; c < columns.length; c++) {
    const found = at(r, c);
    if (found) image.data.set([...found, 255], 4 * (r * columns.length + c));
  }
  cells.getContext("2d").putImageData(image, 0, 0);
  let current = null, place = null;

  function paint() {
    const room = Math.max(box.clientWidth || 300, 120), density = devicePixelRatio || 1;
    const pen = canvas.getContext("2d");
    pen.font = "11px system-ui, sans-serif";
    const widest = (names) => Math.max(0, ...names.slice(0, 400).map((name) => pen.measureText(shortened(name)).width));
    const left = Math.min(widest(rows), 90) + 24, top = 6;
    const size = Math.min(Math.max((room - left - 4) / columns.length, 0.2), 26, Math.max(3, 560 / rows.length));
    const width = size * columns.length, height = Math.max(size * rows.length, Math.min(14 * rows.length, 60));
    const tall = height / rows.length, across = size > 11, turned = widest(columns) > (across ? size : 24);
    const bottom = turned ? Math.min(across ? widest(columns) : widest(columns.map((name) => shortened(name, 8))), 90) + 26 : 34;
    canvas.style.width = `${room}px`;
    canvas.style.height = `${top + height + bottom}px`;
    canvas.width = room * density;
    canvas.height = (top + height + bottom) * density;
    pen.scale(density, density);
    pen.imageSmoothingEnabled = size < 1;
    pen.drawImage(cells, left, top, width, height);
    pen.strokeStyle = colour("line");
    pen.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
    if (outlined && size >= 3) {
      pen.strokeStyle = frame;
      pen.lineWidth = Math.min(2, Math.max(size / 8, 0.7));
      for (let r = 0; r < rows.length; r++) for (let c = 0; c < columns.length; c++) {
        if (outlined(r, c)) pen.strokeRect(left + c * size + 0.5, top + r * tall + 0.5, size - 1, tall - 1);
      }
    }
    names(pen, { left, top, size, tall, width, height, bottom, across, turned });
    if (current) {
      pen.strokeStyle = colour("accent");
      pen.lineWidth = 2;
      pen.strokeRect(left + current[1] * size - 1, top + current[0] * tall - 1, Math.max(size, 2) + 2, Math.max(tall, 2) + 2);
    }
    place = { left, top, size, tall };
  }

  function names(pen, { left, top, size, tall, width, height, bottom, across, turned }) {
    pen.fillStyle = colour("text");
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let r = 0; r < rows.length; r += Math.ceil(14 / Math.max(tall, 1)) > 1 && tall <= 11 ? Math.ceil(14 / tall) : 1) {
      pen.fillText(shortened(rows[r]), left - 5, top + (r + 0.5) * tall, left - 20);
    }
    for (let c = 0; c < columns.length; c += across ? 1 : Math.ceil((turned ? 14 : 26) / size)) {
      pen.save();
      pen.translate(left + (c + 0.5) * size, top + height + 8);
      if (turned) pen.rotate(-Math.PI / 2);
      pen.textAlign = turned ? "right" : "center";
      pen.fillText(shortened(columns[c], turned && !across ? 8 : 14), 0, 0, turned ? bottom - 22 : undefined);
      pen.restore();
    }
    pen.fillStyle = colour("quiet");
    pen.textAlign = "center";
    pen.fillText(x, left + width / 2, top + height + bottom - 6);
    pen.save();
    pen.translate(7, top + height / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(y, 0, 0);
    pen.restore();
  }

  function go(row, column) {
    current = [Math.min(Math.max(row, 0), rows.length - 1), Math.min(Math.max(column, 0), columns.length - 1)];
    paint();
    output.replaceChildren(make("bdi", { text: says(...current) }));
  }

  function under(event) {
    const from = canvas.getBoundingClientRect(), zoom = canvas.clientWidth / from.width;
    const row = Math.floor(((event.clientY - from.top) * zoom - place.top) / place.tall);
    const column = Math.floor(((event.clientX - from.left) * zoom - place.left) / place.size);
    return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : null;
  }

  canvas.addEventListener("mousemove", (event) => {
    const cell = under(event);
    if (cell && String(cell) !== String(current)) go(...cell);
  });
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (cell) { go(...cell); picked?.(...cell); }
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in moves) {
      event.preventDefault();
      const [row, column] = current || [0, -1];
      go(row + moves[event.key][0], column + moves[event.key][1]);
    } else if (event.key === "Enter" && current) picked?.(...current);
  });
  box.paint = paint;
  return box;
}
