// Plotly figures in the colours of the page, drawn when they come into view.

let axis = "linear", single = false, every = false;
const drawn = new Set();

function legible(text) {
  if (text === "black") return colour("text");
  const rgb = /^rgba?\((\d+), ?(\d+), ?(\d+)/.exec(text);
  if (!dark.matches || !rgb) return text;
  const parts = rgb.slice(1, 4).map(Number);
  const light = (0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2]) / 255;
  return light > 0.45 ? text : `rgb(${parts.map((part) => Math.round(part + 0.45 * (255 - part))).join(", ")})`;
}

function recoloured(value) {
  if (typeof value === "string") return legible(value);
  if (Array.isArray(value)) return value.length < 100 ? value.map(recoloured) : value;
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) =>
    [key, /color|line|marker|^error/.test(key) ? recoloured(inner) : inner]));
}

function coloured(trace) {
  // Marks on bars are light in dark windows, so that bars should not be.
  return { ...recoloured(trace), ...(trace.type === "bar" && dark.matches ? { opacity: 0.45 } : {}) };
}

function themed(layout) {
  const now = structuredClone(layout);
  if (now.legend) now.legend = { orientation: "h", yref: "container", yanchor: "bottom", y: 0, x: 0, font: { size: 11 } };
  const look = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true };
  for (const key of Object.keys(now)) if (/^[xy]axis/.test(key)) Object.assign(now[key], look);
  for (const key of ["xaxis", "yaxis"]) now[key] = { ...look, ...now[key] };
  for (const slider of now.sliders || []) Object.assign(slider, { bgcolor: colour("line"), bordercolor: colour("line") });
  for (const shape of now.shapes || []) if (shape.line) shape.line = recoloured(shape.line);
  for (const remark of now.annotations || []) {
    if (remark.bgcolor) remark.bgcolor = colour("back");
    if (remark.font) remark.font = recoloured(remark.font);
  }
  return Object.assign(now, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", color: colour("text"), size: 12 },
    hoverlabel: { namelength: -1 },
  });
}

function draw(element) {
  const figure = page.figures[element.dataset.figure];
  const options = { displaylogo: false, responsive: true, displayModeBar: innerWidth > 640 ? "hover" : false };
  const layout = themed(figure.layout), width = element.clientWidth || 400;
  const data = figure.data.map(coloured), fits = Math.floor((width - 100) / 6.5);
  for (const trace of data) if (trace.name && trace.showlegend !== false) trace.name = shortened(trace.name, fits);
  let rows = 1, taken = 0;  // of the legend
  for (const trace of data.filter((one) => one.showlegend !== false && one.visible !== false && one.name)) {
    const room = 55 + 6.5 * trace.name.length;
    if (taken && taken + room > width - 50) { rows += 1; taken = 0; }
    taken += room;
  }
  layout.height = (layout.height || 400) - 60 + 22 * rows;
  const frames = figure.frames.map((frame) => ({ ...frame, data: frame.data.map(coloured) }));
  return Plotly.react(element, { data, layout, frames, config: options }).then(() => {
    element.removeAllListeners("plotly_restyle");
    element.on("plotly_restyle", () => follow(element));  // a name in the legend was clicked
    reveal(element);
    follow(element);
    mark(element);
  });
}

// In charts over steps: the kind of axis, and single seeds or a band where the mean of a metric is shown.
function follow(element) {
  if (!element.data || !("steps" in element.dataset)) return;
  const shown = new Map();
  for (const trace of element.data) if (trace.meta?.kind === "mean") shown.set(trace.legendgroup, trace.visible ?? true);
  const visible = element.data.map((trace) => {
    const kind = trace.meta?.kind;
    if (kind !== "seed" && kind !== "band") return trace.visible ?? true;
    return shown.get(trace.legendgroup) === true && (kind === "seed") === single;
  });
  Plotly.update(element, { visible }, { "xaxis.type": axis, "xaxis.dtick": axis === "log" ? 1 : null });
}

// In charts over steps, the curves that are hidden at first: the button does what a click on their names does.
function reveal(element) {
  if (!element.data || !("steps" in element.dataset)) return;
  const own = page.figures[element.dataset.figure].data.map((trace) => trace.visible ?? true);
  if (own.includes("legendonly")) Plotly.restyle(element, { visible: own.map((is) => every && is === "legendonly" ? true : is) });
}

// The checkpoint that is chosen, as a line in charts over steps.
function mark(element) {
  if (!element.data || !("steps" in element.dataset)) return;
  const here = element.closest("article") === document.getElementById(`run${chosen.run}`);
  const x = chosen.step, line = { color: colour("quiet"), width: 1, dash: "dot" };
  const there = here && x !== null && !(axis === "log" && x === 0);
  Plotly.relayout(element, { shapes: there ? [{ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line }] : [] });
}

// Plotly listens to the window for every chart, until it is told that the chart is gone.
function cleared(place) {
  place.querySelectorAll(".js-plotly-plot").forEach((chart) => Plotly.purge(chart));
  place.replaceChildren();
  return place;
}

// A chart of what is chosen.
function small(element, data, layout) {
  const common = { height: 260, margin: { l: 50, r: 15, t: 10, b: 45 }, showlegend: data.length > 1, legend: {} };
  const options = { displaylogo: false, responsive: true, displayModeBar: false };
  Plotly.react(element, data.map(coloured), themed({ ...common, ...layout }), options);
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      drawn.add(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "400px" });

function switches(attribute, toggle) {
  const buttons = document.querySelectorAll(`[${attribute}]`);
  buttons.forEach((button) => button.addEventListener("click", () => {
    const pressed = toggle();
    buttons.forEach((each) => each.setAttribute("aria-pressed", pressed));
    drawn.forEach((element) => { follow(element); mark(element); });
  }));
}
