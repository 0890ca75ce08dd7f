// Memories: a matrix in the coordinates of its memory, beside the plain sum.

const NO_RIVAL = 32767;  // the largest int16

async function showMemories(place, now) {
  const found = now.frame.memories, names = Object.keys(found);
  if (!names.length) return nothing(place, "This task names no memories that the model has room for.");
  if (!names.includes(chosen.memory)) chosen.memory = names.find((name) => now.run.solution.includes(name)) || names[0];
  const name = chosen.memory, memory = found[name];
  const keys = page.names[memory.keys], values = page.names[memory.values], n = memory.pairs_to_hold;
  const [learned, ideal, right, targets, rivals, margins, singular] = await Promise.all([
    array(memory.learned, Int8Array), array(memory.ideal, Int8Array), array(memory.right, Uint8Array),
    array(memory.targets, Int32Array), array(memory.rivals, Int32Array), array(memory.margins, Int16Array),
    array(memory.singular, Uint16Array),
  ]);
  if (!now.current()) return null;
  const limits = now.run.limits[name];
  const controls = make("div", { class: "controls js-only" },
    chooser("matrix", "pick-memory", names.map((one) => [one, one]), name, (value) => { chosen.memory = value; showAll(); }));
  const about = make("p", {}, make("b", { text: name }), memory.job ? `: ${memory.job}. ` : ". ");
  if (n) {
    about.append(`${count(memory.recalled)} of ${count(n)} pair${n === 1 ? "" : "s"} recalled at step ${now.step}.`);
    if (limits?.limit) about.append(` About ${count(limits.limit)} would fit.`);
  } else about.append("It should hold a distribution for each key, not one answer.");

  const several = right.reduce((sum, one) => sum + one, 0) > 1.5 * keys.length;
  const picture = (title, content) => heading(title, heat({
    rows: keys, columns: values, x: memory.columns, y: memory.rows, frame: "#222",
    label: `${name}, ${title}: ${keys.length} by ${values.length} scores`,
    at: (r, c) => {
      const v = content[r * values.length + c];
      return v === -128 ? null : n ? shade(DIVERGING, (v / 127 + 1) / 2) : shade(WEIGHT, v / 127);
    },
    says: (r, c) => {
      const v = content[r * values.length + c], isRight = right[r * values.length + c] ? " (right)" : "";
      return `${keys[r]} → ${values[c]}: ${v === -128 ? "may not compete" : (v / 127).toFixed(2)}${isRight}`;
    },
    outlined: several ? (r, c) => right[r * values.length + c] === 1 : null,
  }));
  const maps = make("div", { class: "grid" }, picture("learned", learned),
    picture(n ? "Hebbian: the plain sum that theory writes down" : "to be stored", ideal));
  const key = n ? scale(DIVERGING, "−1", "1, the largest score") : scale(WEIGHT, "probability 0", "1");
  const charts = make("div", { class: "grid" });
  cleared(place).append(controls, about, maps, key, charts);
  for (const box of maps.querySelectorAll(".heat")) box.paint();
  if (!n) return null;

  const later = [];  // the width of a chart is known once all are there
  const chart = (title, data, layout) => {
    const element = make("div", { class: "chart" });
    charts.append(heading(title, element));
    later.push(() => small(element, data, layout));
  };
  const scores = { right: [], others: [] };
  for (let k = 0; k < learned.length; k++) if (learned[k] !== -128) scores[right[k] ? "right" : "others"].push(learned[k] / 127);
  const bins = { histnorm: "probability", xbins: { start: -1.02, end: 1.02, size: 0.04 }, type: "histogram", opacity: 0.65 };
  chart("Right scores, and all others", [
    { ...bins, x: scores.others, name: "others", marker: { color: "rgb(136, 136, 136)" } },
    { ...bins, x: scores.right, name: "right", marker: { color: "rgb(178, 24, 43)" } },
  ], {
    barmode: "overlay", xaxis: { title: { text: "score, the largest is 1" }, range: [-1.02, 1.02] },
    yaxis: { title: { text: "fraction" }, tickformat: ".0%" },
  });
  const rivalled = [...margins].filter((margin) => margin < NO_RIVAL).map((margin) => margin / 100);
  chart("Margins: above 0 a pair is recalled", [{ type: "histogram", x: rivalled, marker: { color: "rgb(68, 119, 170)" }, nbinsx: 40 }], {
    xaxis: { title: { text: "margin, in standard deviations of a score" } }, yaxis: { title: { text: "pairs" } },
    shapes: [{ type: "line", x0: 0, x1: 0, y0: 0, y1: 1, yref: "paper", line: { color: colour("text"), width: 1.5 } }],
  });
  if (singular.length) {
    const dots = { x: range(singular.length).map((i) => i + 1), y: [...singular].map((value) => value / 1000), mode: "markers", marker: { size: 4, color: "rgb(68, 119, 170)" } };
    chart("Singular values", [dots], { xaxis: { title: { text: "rank" } }, yaxis: { title: { text: "value (mean square 1)" }, rangemode: "tozero" } });
  }
  if (limits) {
    const marks = [
      ["to hold", n, "line-ns-open", "rgb(120, 120, 120)"], ["Hebbian", limits.hebbian, "square-open", "rgb(204, 102, 119)"],
      ["best matrix", limits.ideal, "diamond-open", "rgb(221, 170, 51)"], ["learned", memory.recalled, "circle", "black"],
    ].filter((one) => one[1]);
    chart("Pairs learned at this step; the rest after the last step", [
      ...(limits.limit ? [{ type: "bar", orientation: "h", x: [limits.limit], y: [name], name: "fits", width: 0.4, marker: { color: "rgb(170, 187, 204)" } }] : []),
      ...marks.map(([label, x, symbol, color]) => ({ x: [x], y: [name], name: label, mode: "markers", marker: { symbol, color, size: 13, line: { width: 2, color } } })),
    ], { xaxis: { type: "log", title: { text: "pairs (logarithmic)" }, dtick: 1, range: [0, Math.log10(2 * Math.max(5, n, limits.limit || 0))] }, yaxis: { type: "category", showticklabels: false } });
  }
  const pairs = page.names[memory.pairs], of = page.names[memory.value_names];
  const worst = range(margins.length).sort((a, b) => margins[a] - margins[b]).slice(0, 10);
  const lines = worst.map((z) => make("tr", {},
    make("td", { class: "words" }, named(pairs[z]), " → ", named(of[targets[z]])),
    make("td", { class: margins[z] > 0 ? "good" : "bad", text: margins[z] < NO_RIVAL ? (margins[z] / 100).toFixed(2) : "–" }),
    make("td", { class: "words" }, ...(margins[z] < NO_RIVAL ? [margins[z] > 0 ? "ahead of " : "behind ", named(of[rivals[z]])] : ["without a rival"]))));
  charts.append(heading("The pairs with the smallest margins", make("table", {}, make("tbody", {}, ...lines))));
  later.forEach((start) => start());
  return null;
}
