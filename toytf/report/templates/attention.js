// The attention viewer: a sequence, what one of its positions attends to, what the model predicts there, and the map.

const RIGHT = "#e07000";

async function showAttention(place, now) {
  const shown = now.frame.attention, sequences = now.run.sequences[now.seed];
  chosen.sequence = Math.min(chosen.sequence, sequences.length - 1);
  chosen.layer = Math.min(chosen.layer, shown.layers.length - 1);
  const l = chosen.layer, s = chosen.sequence, layer = shown.layers[l], sequence = sequences[s];
  const all = ["mean", "largest"], known = layer.heads > 1 && all.includes(chosen.head);
  if (!known && !(chosen.head !== null && Number(chosen.head) < layer.heads)) chosen.head = layer.heads > 1 ? "largest" : "0";
  const tokens = page.names[sequence.tokens], parts = page.names[sequence.parts], right = page.names[sequence.right];
  const outputs = page.names[shown.outputs], hint = sequence.right_keys[l];
  const T = tokens.length, first = T - layer.queries, asked = T - sequence.asked.length;
  const [pattern, predicted, probability, rightProbability, places] = await Promise.all([
    array(layer.maps[s], layer.signed ? Int8Array : Uint8Array), array(shown.predicted[s], Int32Array),
    array(shown.probabilities[s], Uint16Array), array(shown.right_probability[s], Uint16Array),
    hint ? array(hint[1], Uint8Array) : null,
  ]);
  if (!now.current()) return null;

  const together = all.includes(chosen.head), unit = layer.signed ? 127 : 255;
  const heads = together ? range(layer.heads) : [Number(chosen.head)];
  const weight = (q, k, some = heads) => {
    const each = some.map((h) => pattern[(h * layer.queries + q - first) * T + k] / unit);
    return chosen.head === "largest" ? each.reduce((most, one) => Math.abs(one) > Math.abs(most) ? one : most) : each.reduce((sum, one) => sum + one, 0) / each.length;
  };
  const said = (w) => layer.signed ? (w * layer.largest).toFixed(2) : percent(w);
  const tint = (w) => layer.signed ? shade(DIVERGING, (w + 1) / 2) : shade(WEIGHT, w);
  const isRight = (q, k) => Boolean(places && q >= T - hint[0] && places[(q - (T - hint[0])) * T + k]);
  const last = sequence.asked.lastIndexOf(1);
  if (chosen.query === null || chosen.query >= T) chosen.query = last < 0 ? T - 1 : asked + last;
  chosen.query = Math.max(chosen.query, first);

  const each = range(layer.heads).map((h) => [h, `L${l}H${h}`]);
  const choices = layer.heads > 1 ? [...each, ...all.map((word) => [word, `${word} of all heads`])] : each;
  const texts = sequences.map((one, i) => [i, `${i + 1}: ${page.names[one.tokens].slice(0, 12).map((token) => shortened(token, 6)).join(" ")} …`]);
  const controls = make("div", { class: "controls js-only" },
    chooser("sequence", "pick-sequence", texts, s, (value) => { chosen.sequence = Number(value); chosen.query = null; showAll(); }),
    chooser("layer", "pick-layer", range(shown.layers.length).map((i) => [i, `${i + 1}`]), l, (value) => { chosen.layer = Number(value); showAll(); }),
    chooser("head", "pick-head", choices, chosen.head, (value) => { chosen.head = value; showAll(); }));

  const part = (t) => sequence.part_of[t];
  const buttons = tokens.map((token, t) => make("button", {
    class: `token${part(t) >= 0 ? ` part${part(t) % 4}` : ""}`, tabindex: "-1", text: shortened(token, 20), disabled: t < first,
    title: `${token}, position ${t + 1}${part(t) >= 0 ? `: ${parts[part(t)]}` : ""}`,
    onmouseenter: () => ask(t), onfocus: () => ask(t),
    onkeydown: (event) => {
      const to = { ArrowLeft: t - 1, ArrowRight: t + 1, Home: first, End: T - 1 }[event.key];
      if (to !== undefined && to >= first && to < T) { event.preventDefault(); buttons[to].focus(); }
    },
  }));
  const copies = tokens.map((token) => make("span", { class: "token", text: shortened(token, 20) }));
  const keyed = make("p", { class: "quiet", id: "attends" }), says = make("p", { class: "quiet" }), list = make("ol", { class: "predictions" });

  function ask(t) {
    if (t < first) return;
    chosen.query = t;
    buttons.forEach((button, k) => { button.classList.toggle("query", k === t); button.tabIndex = k === t ? 0 : -1; });
    copies.forEach((copy, k) => {
      const w = k <= t ? weight(t, k) : 0, rgb = tint(w);
      copy.classList.toggle("right", k <= t && isRight(t, k));
      copy.classList.toggle("query", k === t);
      copy.classList.toggle("later", k > t);
      copy.style.background = k <= t ? `rgb(${rgb.join(",")})` : "";
      copy.style.color = k <= t ? (0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2] > 140 ? "#111" : "#fff") : "";
      copy.title = `${tokens[k]}, position ${k + 1}: ${k <= t ? said(w) : "comes later"}`;
    });
    const most = range(t + 1).sort((a, b) => Math.abs(weight(t, b)) - Math.abs(weight(t, a))).slice(0, 3);
    keyed.replaceChildren(`Position ${t + 1} (`, named(tokens[t]), ") attends most to ", ...most.flatMap((k, i) =>
      [i ? ", " : "", named(tokens[k]), ` at ${k + 1} (${said(weight(t, k))}${isRight(t, k) ? ", right" : ""})`]), chosen.head === "largest" ? ", each in the head that attends to it most." : ".");
    predict(t - asked);
  }

  function predict(q) {
    list.replaceChildren();
    says.textContent = q < 0 ? "Nothing is predicted at this position."
      : sequence.asked[q] ? "What comes next is asked here:" : "What comes next is not asked here, and was perhaps not trained:";
    if (q < 0) return;
    const row = (name, p, remark) => make("li", {}, named(name, 16),
      make("span", { class: "track" }, make("span", { class: "fill", style: `width: ${Math.min(100 * p, 100)}%` })),
      make("span", { class: remark ? "good" : "", text: `${percent(p)}${remark}` }));
    const top = predicted.length / sequence.asked.length, names = range(top).map((i) => outputs[predicted[q * top + i]]);
    const isIt = (name) => Boolean(sequence.asked[q]) && name === right[q];
    names.forEach((name, i) => list.append(row(name, probability[q * top + i] / 10000, isIt(name) ? (i ? " right answer" : " ✓") : "")));
    if (sequence.asked[q] && !names.includes(right[q])) list.append(row(right[q], rightProbability[q] / 10000, " right answer"));
  }

  const oneQuery = layer.queries === 1, names = oneQuery ? each.map(([, text]) => text) : tokens.slice(first);
  const value = (r, k) => oneQuery ? weight(first, k, [r]) : weight(first + r, k);
  const map = heat({
    rows: names, columns: tokens, x: "key: attended token", y: oneQuery ? "head" : "query", frame: RIGHT,
    label: `attention of layer ${l + 1}`,
    at: (r, k) => !oneQuery && k > first + r ? null : tint(value(r, k)),
    says: (r, k) => `${names[r]}${oneQuery ? "" : ` (position ${first + r + 1})`} attends to ${tokens[k]} (position ${k + 1}): ${!oneQuery && k > first + r ? "never, it comes later" : said(value(r, k))}`,
    outlined: (r, k) => isRight(oneQuery ? first : first + r, k),
    picked: (r) => { if (!oneQuery) ask(first + r); },
  });
  const legend = make("ul", { class: "legend" },
    ...parts.map((text, i) => make("li", {}, make("span", { class: `swatch part${i % 4}` }), text)),
    make("li", {}, make("span", { class: "swatch", style: `outline: 3px solid ${RIGHT}` }), places ? "where this layer should look, if that matters" : "(the task does not say where this layer should look)"));
  const which = oneQuery ? "all heads at the last position" : together ? `${chosen.head} of all heads` : `head L${l}H${chosen.head}`;
  place.replaceChildren(controls, legend,
    make("p", { class: "quiet", text: `Point at a token, or move with the arrow keys, to see what it attends to and what the model predicts there.${sequence.before ? ` The first ${count(sequence.before)} positions are left out.` : ""}${sequence.after ? ` The last ${count(sequence.after)} positions are left out.` : ""}` }),
    make("div", { class: "sequence", role: "group", "aria-label": "tokens of the sequence, coloured by their part" }, ...buttons),
    make("h3", { text: "What it attends to" }), make("div", { class: "sequence weights", "aria-hidden": "true" }, ...copies), keyed,
    make("h3", { text: "What the model predicts" }), says, list,
    heading(`Attention of layer ${l + 1}, ${which}`, map),
    layer.signed ? scale(DIVERGING, (-layer.largest).toFixed(2), layer.largest.toFixed(2)) : scale(WEIGHT, "0", "1"));
  map.paint();
  ask(chosen.query);
  return null;
}
