// What is chosen (run, seed, checkpoint and the rest), the bar that chooses it, and showing all of it.

const chosen = { run: 0, seed: null, step: null, memory: null, layer: 99, head: null, sequence: 0, query: null, facts: "known", search: "" };
const views = { memories: showMemories, attention: showAttention, facts: showFacts };
let turn = 0;

function steps() {
  return runs[chosen.run].steps[chosen.seed] || [];
}

// Keep seed and step if the run has them; else its first seed, and the last step that is not later.
function settle() {
  const seeds = Object.keys(runs[chosen.run].steps), before = chosen.step;
  if (!seeds.includes(String(chosen.seed))) chosen.seed = seeds.length ? seeds[0] : null;
  if (!steps().includes(before)) {
    const earlier = before === null ? steps() : steps().filter((step) => step <= before);
    chosen.step = (earlier.length ? earlier : steps()).at(-1) ?? null;
  }
}

function nothing(place, text) {
  place.replaceChildren(make("p", { text }));
  return null;
}

// The bar is built when run or seed change; the slider stays while it is moved.
function showBar() {
  const bar = document.getElementById("bar"), key = `${chosen.run}/${chosen.seed}`;
  if (bar.dataset.key !== key) {
    const focused = bar.contains(document.activeElement) ? document.activeElement.id : null;
    bar.dataset.key = key;
    bar.replaceChildren();
    const choose = (label, id, options, value, changed) => bar.append(chooser(label, id, options, value, changed));
    if (runs.length > 1) {
      choose("run", "pick-run", runs.map((one, i) => [i, one.name]), chosen.run, (value) => { chosen.run = Number(value); chosen.query = null; showAll(); });
    }
    const seeds = Object.keys(runs[chosen.run].steps);
    if (seeds.length > 1) choose("seed", "pick-seed", seeds.map((seed) => [seed, seed]), chosen.seed, (value) => { chosen.seed = value; showAll(); });
    if (steps().length) {
      const moved = (event) => { chosen.step = steps()[Number(event.target.value)]; showAll(); };
      const slider = make("input", { id: "pick-step", type: "range", min: 0, max: steps().length - 1, "aria-label": "checkpoint", oninput: moved });
      if (steps().length > 1) bar.append(make("label", {}, "checkpoint", slider));
      bar.append(make("span", { id: "at-step" }));
    }
    bar.hidden = !bar.children.length;
    if (focused) document.getElementById(focused)?.focus();
  }
  const slider = document.getElementById("pick-step");
  if (slider) {
    slider.value = steps().indexOf(chosen.step);
    slider.setAttribute("aria-valuetext", `step ${chosen.step}`);
  }
  if (steps().length) document.getElementById("at-step").textContent = `weights at step ${chosen.step}`;
}

async function showAll() {
  const mine = ++turn;
  settle();
  document.querySelectorAll("article.run").forEach((article, i) => {
    article.hidden = i !== chosen.run;
    if (article.hidden) article.querySelectorAll("[data-view]").forEach(cleared);
  });
  showBar();
  const run = runs[chosen.run], article = document.getElementById(`run${chosen.run}`), focused = document.activeElement?.id;
  const frame = run.frames[`${chosen.seed}/${chosen.step}`];
  const now = { run, frame, seed: chosen.seed, step: chosen.step, current: () => mine === turn };
  for (const [name, show] of Object.entries(views)) {
    const place = article.querySelector(`[data-view=${name}]`);
    if (!place || !frame) continue;
    try {
      await show(place, now);
    } catch (error) {
      console.error(error);
      nothing(place, `This cannot be shown here (${error.message}): a newer browser may help.`);
    }
    if (mine !== turn) return;
  }
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
  for (const element of drawn) if (article.contains(element)) mark(element);
  document.documentElement.dataset.shown = `${chosen.run}/${chosen.seed}/${chosen.step}`;
}

document.documentElement.classList.add("js");
document.querySelectorAll("[data-figure]").forEach((element) => seen.observe(element));
switches("data-axis", () => { axis = axis === "linear" ? "log" : "linear"; return axis === "log"; });
switches("data-single", () => { single = !single; return single; });
switches("data-every", () => { every = !every; drawn.forEach(reveal); return every; });
dark.addEventListener("change", () => { drawn.forEach(draw); showAll(); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; showAll(); } });
addEventListener("beforeprint", () => document.querySelectorAll("[data-figure]").forEach((element) => {
  if (!drawn.has(element)) { drawn.add(element); draw(element); }
}));
showAll();
