// Facts: subjects by relations, searched and listed.

const LISTED = 200, CELLS = 64;
const PLACES = [[120, 120, 120], [68, 119, 170], [238, 119, 51], [0, 153, 136], [170, 51, 119]];

async function showFacts(place, now) {
  const facts = now.frame.facts;
  const subjects = page.names[facts.subjects], relations = page.names[facts.relations];
  const answers = page.names[facts.answers], places = page.names[facts.places];
  const [right, said, known, margin, stored] = await Promise.all([
    array(facts.right, Int32Array), array(facts.said, Int32Array), array(facts.known, Int8Array),
    array(facts.margin, Int16Array), array(facts.stored, Int8Array),
  ]);
  if (!now.current()) return null;
  const R = relations.length, all = range(right.length).filter((i) => right[i] >= 0), isKnown = (i) => known[i] === 100;
  const wrong = all.filter((i) => !isKnown(i)).sort((a, b) => margin[a] - margin[b]);
  const fact = (i) => [subjects[Math.floor(i / R)], relations[i % R]];
  const modes = [["known", "known or wrong"], ["margin", "margin"], ...(places.length ? [["stored", "where it is stored"]] : [])];
  if (!modes.some(([mode]) => mode === chosen.facts)) chosen.facts = "known";

  // Neighbours share a cell where there are more than can be drawn.
  const high = Math.ceil(subjects.length / CELLS), wide = Math.ceil(R / CELLS);
  const blocks = (names, size) => range(Math.ceil(names.length / size)).map((b) =>
    size === 1 ? names[b] : `${names[b * size]} … ${names[Math.min((b + 1) * size, names.length) - 1]}`);
  const rows = blocks(subjects, high), columns = blocks(relations, wide), members = new Map();
  for (const i of all) {
    const cell = Math.floor(Math.floor(i / R) / high) * columns.length + Math.floor((i % R) / wide);
    if (!members.has(cell)) members.set(cell, []);
    members.get(cell).push(i);
  }
  const inside = (r, c) => members.get(r * columns.length + c) || [];
  const mean = (some, value) => some.reduce((sum, i) => sum + value(i), 0) / some.length;
  const largest = all.reduce((most, i) => Math.max(most, Math.abs(margin[i])), 1);
  const where = (i) => stored[i] >= 0 && places.length ? places[stored[i]] : "";

  const search = make("input", {
    id: "search-facts", type: "search", size: 28, placeholder: "subject, relation or answer", "aria-label": "search facts",
    value: chosen.search, oninput: () => { chosen.search = search.value; fill(); },
  });
  const controls = make("div", { class: "controls js-only" },
    chooser("colour", "pick-facts", modes, chosen.facts, (mode) => { chosen.facts = mode; showAll(); }), make("label", {}, "search", search));
  const title = make("h3", {}), listed = make("div", { class: "list" });

  function fill(only = null) {
    const wanted = search.value.trim().toLowerCase();
    const fits = (i) => [...fact(i), answers[right[i]], answers[said[i]]].some((name) => name.toLowerCase().includes(wanted));
    const matching = only || (wanted ? all.filter(fits) : wrong);
    title.textContent = only ? `Facts of this cell (${count(only.length)})` : wanted ? `Facts that match (${count(matching.length)})`
      : wrong.length ? `Facts that are not always right (${count(wrong.length)})` : "No fact is wrong";
    const lines = matching.slice(0, LISTED).map((i) => make("tr", {},
      make("td", { class: "words" }, named(fact(i)[0]), ", ", named(fact(i)[1])),
      make("td", { class: `words ${isKnown(i) ? "good" : "bad"}` }, ...(isKnown(i) ? ["right: ", named(answers[right[i]])]
        : [`right in ${known[i]} % of the draws; says `, named(answers[said[i]]), ", should be ", named(answers[right[i]])])),
      make("td", { text: `margin ${(margin[i] / 100).toFixed(2)}` }), make("td", { class: "words quiet", text: where(i) })));
    listed.replaceChildren(make("table", { class: "stack" }, make("tbody", {}, ...lines)));
    listed.hidden = !lines.length;
    if (matching.length > LISTED) listed.append(make("p", { class: "quiet", text: `… and ${count(matching.length - LISTED)} more: search to narrow them down.` }));
  }

  const map = heat({
    rows, columns, x: wide > 1 ? `relations, ${wide} in a column` : "relation", y: high > 1 ? `subjects, ${high} in a row` : "subject",
    label: "facts by subject and relation",
    at: (r, c) => {
      const some = inside(r, c);
      if (!some.length) return null;
      if (chosen.facts === "margin") return shade(KNOWN, (mean(some, (i) => margin[i]) / largest + 1) / 2);
      if (chosen.facts === "known") return shade(KNOWN, some.length === 1 ? known[some[0]] / 100 : mean(some, isKnown));
      const counts = new Map();
      for (const i of some) counts.set(stored[i], (counts.get(stored[i]) || 0) + 1);
      return PLACES[[...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a))[0] + 1];
    },
    says: (r, c) => {
      const some = inside(r, c), [i] = some;
      if (!some.length) return `${rows[r]}, ${columns[c]}: no fact`;
      if (some.length > 1) return `${rows[r]}; ${columns[c]}: ${some.filter(isKnown).length} of ${some.length} facts known`;
      const answer = isKnown(i) ? `right, ${answers[right[i]]}` : `says ${answers[said[i]]}, should be ${answers[right[i]]}`;
      return `${fact(i).join(", ")}: ${answer}; margin ${(margin[i] / 100).toFixed(2)}${where(i) ? `; stored in: ${where(i)}` : ""}`;
    },
    picked: (r, c) => fill(inside(r, c)),
  });
  const swatch = (text, i) => make("li", {}, make("span", { class: "swatch", style: `background: rgb(${PLACES[i].join(",")})` }), text);
  const most = (largest / 100).toFixed(1), several = high > 1 || wide > 1;
  const key = chosen.facts === "stored" ? make("ul", { class: "legend" }, ...["wrong", ...places].map(swatch))
    : chosen.facts === "margin" ? scale(KNOWN, `margin −${most}`, `${most} (logits; wrong below 0)`)
    : several ? scale(KNOWN, "none known", "all known") : scale(KNOWN, "wrong in every draw of the noise", "right in every draw");
  place.replaceChildren(make("p", { text: `At step ${now.step}, ${count(all.length - wrong.length)} of ${count(all.length)} facts are right whatever the noise.` }),
    controls, map, key, title, listed);
  map.paint();
  fill();
  return null;
}
