"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg";
const data = JSON.parse(document.getElementById("data").textContent);
const make = (name, attributes, parent) => {
  const e = document.createElementNS(SVG, name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (parent) parent.append(e);
  return e;
};
const html = (name, cls, text, parent) => {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  if (parent) parent.append(e);
  return e;
};

// theme: the system's until the reader chooses
const root = document.documentElement, theme = document.getElementById("theme");
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
try { const kept = localStorage.getItem("sassafras-theme"); if (kept) root.dataset.theme = kept; } catch { /* no storage here */ }
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("sassafras-theme", root.dataset.theme); } catch { /* not kept */ }
  name();
});
name();

// search curves
for (const button of document.querySelectorAll("button[data-show]")) button.addEventListener("click", () => {
  const box = button.closest("section");
  for (const b of box.querySelectorAll("button[data-show]")) b.setAttribute("aria-pressed", String(b === button));
  for (const t of box.querySelectorAll("[data-tab]")) t.hidden = t.dataset.tab !== button.dataset.show;
});
for (const e of document.querySelectorAll("[data-run]")) {
  const mark = on => { for (const o of document.querySelectorAll("g.curve")) o.classList.toggle("faint", on && o.dataset.run !== e.dataset.run); };
  e.addEventListener("mouseenter", () => mark(true));
  e.addEventListener("mouseleave", () => mark(false));
}

const ROW = 18;
const reasonClass = r => r.startsWith("scoreboard") ? "r-scoreboard" : ({"stall count": "r-stall", "copy group": "r-copy",
  "HGMMA group": "r-tensor", "barrier": "r-barrier", "pipe busy": "r-pipe", "memory queue full": "r-queue", "register banks": "r-banks",
  "not selected": "r-turn"})[r] || "r-start";
const hex = n => "0x" + (16 * n).toString(16).padStart(4, "0");
const kernels = {};

function control(k, x, side) {
  let waits = "";
  for (let b = 0; b < 6; b++) waits += k.wait[x] >> b & 1 ? b : "-";
  const [w, r] = k.sets[x];
  return `B${waits}:R${r < 0 ? "-" : r}:W${w < 0 ? "-" : w}`;
}

// both schedules side by side
function sides(box, k, key) {
  const n = k.text.length, moved = new Set(k.moved), starts = new Set(k.blocks);
  const where = [new Array(n), new Array(n)];
  const orders = [Array.from({length: n}, (_, i) => i), k.order];
  orders.forEach((o, s) => o.forEach((x, p) => { where[s][x] = p; }));
  const most = Math.max(1, ...k.waits[0], ...k.waits[1]);
  const inLoop = p => k.loops.some(([a, b]) => p >= a && p <= b);
  const tools = html("div", "tools", undefined, box);
  html("span", "dim", `${moved.size} instructions moved, `, tools);
  const changed = k.stall[0].filter((s, x) => s !== k.stall[1][x]).length;
  html("span", "dim", `${changed} stall counts changed`, tools);
  html("span", "grow", "", tools);
  const jump = step => {
    const rows = [...moved].map(x => where[1][x]).sort((a, b) => a - b);
    const here = Math.round(panes[1].scrollTop / ROW) + 3;
    const next = step > 0 ? rows.find(p => p > here) : rows.reverse().find(p => p < here);
    if (next !== undefined) show(orders[1][next]);
  };
  const up = html("button", "", "previous move", tools), down = html("button", "", "next move", tools);
  up.type = down.type = "button";
  const grid = html("div", "panes", undefined, box);
  const panes = [], rows = [[], []];
  let joins;
  for (const s of [0, 1]) {
    const pane = html("div", "pane", undefined, grid);
    pane.tabIndex = 0;
    pane.setAttribute("role", "region");
    pane.setAttribute("aria-label", s ? "schedule after" : "schedule before");
    panes.push(pane);
    if (!s) { joins = make("svg", {"aria-hidden": "true"}, grid); }
    const all = document.createDocumentFragment();
    orders[s].forEach((x, p) => {
      const row = html("div", "row" + (x in k.named ? " nm mv" : moved.has(x) ? " mv" : "") + (starts.has(p) ? " head" : ""));
      row.dataset.x = x;
      html("span", "at", (16 * p).toString(16).padStart(4, "0"), row);
      html("span", "no", x in k.named ? String(k.named[x] + 1) : "", row);
      html("span", "st" + (k.stall[0][x] !== k.stall[1][x] ? " ch" : ""), String(k.stall[s][x]), row);
      html("span", "cc", control(k, x, s), row);
      const wait = html("span", "wt", k.waits[s][x] ? String(k.waits[s][x]) : "", row);
      if (k.waits[s][x]) html("i", "", "", wait).style.width = Math.max(2, 48 * k.waits[s][x] / most) + "px";
      html("span", inLoop(p) ? "lp" : "", k.text[x], row);
      rows[s][x] = row;
      all.append(row);
    });
    pane.append(all);
  }
  let chosen = -1;
  const draw = () => {
    joins.replaceChildren();
    const height = grid.clientHeight, tops = panes.map(p => p.scrollTop);
    for (const x of moved) {
      const y = [0, 1].map(s => where[s][x] * ROW + ROW / 2 - tops[s]);
      if (!y.some(v => v > 0 && v < height)) continue;
      make("path", {class: "join" + (x in k.named ? " nm" : "") + (x === chosen ? " on" : ""), d: `M0 ${y[0]}C32 ${y[0]} 32 ${y[1]} 64 ${y[1]}`}, joins);
    }
  };
  const mark = x => {
    if (chosen >= 0) for (const s of [0, 1]) rows[s][chosen].classList.remove("on");
    chosen = x;
    if (x >= 0) for (const s of [0, 1]) rows[s][x].classList.add("on");
    draw();
  };
  const show = (x, keep) => {
    mark(x);
    for (const s of [0, 1]) if (s !== keep) {
      const level = keep === undefined ? 4 * ROW : where[keep][x] * ROW - panes[keep].scrollTop;
      panes[s].scrollTop = Math.max(0, where[s][x] * ROW - level);
    }
    draw();
  };
  panes.forEach((pane, s) => {
    pane.addEventListener("scroll", () => requestAnimationFrame(draw), {passive: true});
    pane.addEventListener("mouseover", e => { const row = e.target.closest(".row"); if (row) mark(+row.dataset.x); });
    pane.addEventListener("click", e => { const row = e.target.closest(".row"); if (row) show(+row.dataset.x, s); });
    pane.addEventListener("keydown", e => {
      if (e.key !== "n" && e.key !== "p") return;
      jump(e.key === "n" ? 1 : -1);
    });
  });
  up.addEventListener("click", () => jump(-1));
  down.addEventListener("click", () => jump(1));
  new ResizeObserver(draw).observe(grid);
  kernels[key] = Object.assign(kernels[key] || {}, {show});
  draw();
}

// timelines: two warps' issues, waits and scoreboards on one scale
function timelines(box, k, key) {
  if (!k.times.length) { html("p", "says", "left out to keep the page small", box); return; }
  const runs = k.times.map(t => {
    const at = [t.start];
    for (const g of t.gap) at.push(at[at.length - 1] + g);
    const boards = [], open = new Array(6).fill(-1);
    t.at.forEach((x, i) => {
      for (let b = 0; b < 6; b++) if (k.wait[x] >> b & 1 && open[b] >= 0) {
        const held = k.reasons[t.why[i]] === "scoreboard " + b ? at[i] - (i ? at[i - 1] : at[i]) - 1 : 0;
        boards.push([b, open[b], i, Math.max(0, held)]);
        open[b] = -1;
      }
      for (const b of k.sets[x]) if (b >= 0) open[b] = i;
    });
    return {at, boards, x: t.at, why: t.why, cut: t.cut};
  });
  const first = Math.min(...runs.map(r => r.at[0])), last = Math.max(...runs.map(r => r.at[r.at.length - 1])) + 1;
  const tools = html("div", "tools", undefined, box);
  const zoomOut = html("button", "", "−", tools), zoomIn = html("button", "", "+", tools), all = html("button", "", "all", tools);
  for (const [b, l] of [[zoomOut, "zoom out"], [zoomIn, "zoom in"], [all, "show all"]]) { b.type = "button"; b.setAttribute("aria-label", l); }
  const span = html("span", "dim", "", tools);
  html("span", "grow", "", tools);
  const used = new Set(runs.flatMap(r => r.why.map(w => k.reasons[w].startsWith("scoreboard") ? "scoreboard" : k.reasons[w])));
  for (const r of used) if (r !== "start") { const s = html("span", "dim", "", tools); html("span", "key " + reasonClass(r), "", s); s.append(r); }
  const H = 2 * 92 + 24, svg = make("svg", {height: H, role: "img", tabindex: "0", "aria-label": "Timelines of one warp before and after; the table below has the totals"}, box);
  const says = html("div", "says", " ", box);
  says.setAttribute("aria-live", "polite");
  let from = first, to = last;
  const busiest = runs[0].at;
  if (busiest.length > 500) to = Math.min(last, busiest[Math.min(busiest.length - 1, 400)]);
  const width = () => svg.clientWidth || 1000;
  const LEFT = 62;
  const draw = () => {
    const W = width(), sx = (W - LEFT - 8) / (to - from), X = c => LEFT + (c - from) * sx;
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    svg.replaceChildren();
    const step = Math.pow(10, Math.floor(Math.log10((to - from) / 5))), nice = [1, 2, 5, 10].map(m => m * step).find(v => (to - from) / v <= 8);
    for (let c = Math.ceil(from / nice) * nice; c <= to; c += nice) {
      make("line", {x1: X(c), x2: X(c), y1: 0, y2: H - 20, class: "grid"}, svg);
      make("text", {x: X(c), y: H - 6, "text-anchor": "middle"}, svg).textContent = c.toLocaleString("en");
    }
    runs.forEach((r, s) => {
      const top = 6 + 92 * s;
      make("text", {x: 4, y: top + 16}, svg).textContent = s ? "after" : "before";
      make("rect", {x: LEFT, y: top, width: W - LEFT - 8, height: 24, class: "lane"}, svg);
      let pixel = -1;
      for (let i = 0; i < r.at.length; i++) {
        const b = r.at[i], a = i ? r.at[i - 1] + 1 : b;
        if (b < from || a > to) continue;
        if (b > a) {
          const x0 = Math.max(LEFT, X(a)), x1 = Math.min(W - 8, X(b));
          if (x1 - x0 >= 0.25) make("rect", {x: x0, y: top, width: x1 - x0, height: 24, class: reasonClass(k.reasons[r.why[i]]), "data-s": s, "data-i": i}, svg);
        }
        const x = X(b);
        if (x - pixel >= 1) { make("rect", {x, y: top, width: Math.max(0.8, Math.min(sx, 3)), height: 24, class: "issue", opacity: Math.min(1, 0.25 + sx / 3), "data-s": s, "data-i": i}, svg); pixel = x; }
      }
      for (const [b, set, wait, held] of r.boards) {
        const a = r.at[set], c = r.at[wait], y = top + 29 + 9 * b;
        if (c < from || a > to) continue;
        const x0 = Math.max(LEFT, X(a)), x1 = Math.min(W - 8, X(c));
        make("rect", {x: x0, y, width: Math.max(0.5, x1 - x0), height: 7, class: "board", "data-s": s, "data-b": set, "data-i": wait}, svg);
        if (held > 0) { const h0 = Math.max(LEFT, X(c - held)); make("rect", {x: h0, y, width: Math.max(0.7, x1 - h0), height: 7, class: "board held", "data-s": s, "data-b": set, "data-i": wait}, svg); }
      }
      for (const b of [0, 5]) make("text", {x: LEFT - 6, y: top + 36 + 9 * b, "text-anchor": "end"}, svg).textContent = "SB" + b;
    });
    span.textContent = `cycles ${Math.round(from).toLocaleString("en")} to ${Math.round(to).toLocaleString("en")}` +
      (runs.some(r => r.cut) ? `; ${Math.max(...runs.map(r => r.cut)).toLocaleString("en")} later steps left out` : "");
  };
  const clamp = () => {
    const wide = Math.min(to - from, last - first);
    if (from < first) { from = first; to = first + wide; }
    if (to > last) { to = last; from = last - wide; }
  };
  const zoom = (f, at) => {
    const c = at === undefined ? (from + to) / 2 : at, wide = Math.max(20, Math.min(last - first, (to - from) * f));
    const share = (c - from) / (to - from);
    from = c - share * wide; to = from + wide; clamp(); draw();
  };
  zoomIn.addEventListener("click", () => zoom(0.5));
  zoomOut.addEventListener("click", () => zoom(2));
  all.addEventListener("click", () => { from = first; to = last; draw(); });
  const cycle = e => { const r = svg.getBoundingClientRect(); return from + (e.clientX - r.left - LEFT) * (to - from) / (width() - LEFT - 8); };
  svg.addEventListener("wheel", e => { if (!e.ctrlKey) return; e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, cycle(e)); }, {passive: false});
  let grip = null;
  svg.addEventListener("pointerdown", e => { grip = {c: cycle(e), x: e.clientX, moved: false}; });
  addEventListener("pointerup", () => { grip = null; svg.classList.remove("drag"); });
  svg.addEventListener("pointermove", e => {
    if (grip && Math.abs(e.clientX - grip.x) > 3) {
      svg.classList.add("drag"); grip.moved = true;
      const d = grip.c - cycle(e); from += d; to += d; clamp(); draw();
      return;
    }
    const t = e.target.dataset;
    if (t.i === undefined) return;
    says.textContent = words(+t.s, +t.i, t.b === undefined ? -1 : +t.b);
  });
  const words = (s, i, set) => {
    const r = runs[s], x = r.x[i], waited = i ? r.at[i] - r.at[i - 1] - 1 : 0, reason = k.reasons[r.why[i]];
    let text = `${s ? "after " : "before"}  cycle ${r.at[i].toLocaleString("en")}  ${hex(x)}  ${k.text[x]}\n        `;
    text += waited > 0 ? `stood still for ${waited} cycles: ${reason}` : "issued without waiting";
    if (set < 0 && reason.startsWith("scoreboard")) { const b = r.boards.find(v => v[2] === i && "scoreboard " + v[0] === reason); if (b) set = b[1]; }
    if (set >= 0) text += `, set by ${k.text[r.x[set]]} at cycle ${r.at[set].toLocaleString("en")}`;
    return text;
  };
  svg.addEventListener("click", e => {
    const t = e.target.dataset;
    if (t.i === undefined) return;
    const x = runs[+t.s].x[+t.i];
    says.textContent = words(+t.s, +t.i, t.b === undefined ? -1 : +t.b);
    kernels[key].show(x);
  });
  svg.addEventListener("keydown", e => {
    const d = (to - from) / 5;
    if (e.key === "ArrowRight") { from += d; to += d; } else if (e.key === "ArrowLeft") { from -= d; to -= d; }
    else if (e.key === "+") { zoom(0.5); return; } else if (e.key === "-") { zoom(2); return; } else return;
    e.preventDefault(); clamp(); draw();
  });
  new ResizeObserver(draw).observe(svg);
  draw();
}

// draw a kernel when it comes near
const near = new IntersectionObserver(entries => {
  for (const e of entries) if (e.isIntersecting) { near.unobserve(e.target); build(e.target); }
}, {rootMargin: "600px"});
const built = new Set();
function build(section) {
  if (built.has(section.id)) return;
  built.add(section.id);
  const k = data[section.id];
  sides(section.querySelector(".sides"), k, section.id);
  timelines(section.querySelector(".timeline"), k, section.id);
}
for (const section of document.querySelectorAll("section.kernel")) near.observe(section);
for (const button of document.querySelectorAll("button.move")) button.addEventListener("click", () => {
  const key = button.dataset.kernel, section = document.getElementById(key), k = data[key];
  build(section);
  const x = Object.keys(k.named).find(v => k.named[v] === +button.dataset.move);
  if (x === undefined) return;
  kernels[key].show(+x);
  section.querySelector(".sides").scrollIntoView({block: "center"});
});
})();
