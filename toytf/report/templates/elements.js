// Elements, names, colours and the arrays of the page. Names are only ever set as text.

const page = JSON.parse(document.getElementById("data").textContent);
const runs = page.runs;
const dark = matchMedia("(prefers-color-scheme: dark)");

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function shortened(name, length = 14) {
  const letters = Array.from(name);
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : name;
}

function named(name, length = 40) {
  const shown = shortened(name, length);
  return make("bdi", { text: shown, title: shown === name ? null : name });
}

function chooser(label, id, options, value, changed) {
  const select = make("select", { id, onchange: (event) => changed(event.target.value) });
  for (const [key, text] of options) select.append(make("option", { value: key, text: shortened(text, 48), title: text }));
  select.value = value;
  return make("label", {}, label, select);
}

function heading(text, ...more) {
  return make("figure", {}, make("figcaption", { text }), ...more);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function percent(p) {
  return p < 0.001 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`;
}

function count(n) {
  return Math.round(n).toLocaleString("en");
}

function range(n) {
  return [...Array(n).keys()];
}

const inflated = new Map();

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// The fields of a frame and their types are those of frames.py.
async function array(number, type) {
  if (!inflated.has(number)) inflated.set(number, inflate(page.arrays[number]));
  return new type(await inflated.get(number));
}
