"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const state = { tab: document.querySelector("nav button").dataset.tab, of: document.querySelector("aside button.on").dataset.computation };

function show() {
  for (const panel of all("section[data-panel]")) {
    const mine = panel.dataset.panel === state.tab;
    panel.hidden = !(mine && (panel.dataset.of === undefined || panel.dataset.of === state.of));
  }
  for (const tab of all("nav button")) tab.setAttribute("aria-selected", tab.dataset.tab === state.tab);
  for (const one of all("aside button")) one.classList.toggle("on", one.dataset.computation === state.of);
  history.replaceState(null, "", `#${state.tab}/${state.of}`);
}

function go(tab, of) {
  state.tab = tab;
  state.of = of ?? state.of;
  show();
}

function choosePass(panel, index) {
  for (const one of all("[data-pass]", panel)) one.classList.toggle("on", one.dataset.pass === index);
  for (const one of all("[data-body]", panel)) one.hidden = one.dataset.body !== index;
}

function openSource(file, line) {
  for (const figure of all("[data-source]")) figure.hidden = true;
  const figure = all("[data-source]").find((f) => f.dataset.source === file);
  if (!figure) return;
  figure.hidden = false;
  for (const row of all("li", figure)) row.classList.toggle("here", line !== undefined && row.dataset.line === line);
  figure.querySelector("li.here")?.scrollIntoView({ block: "center" });
}

document.addEventListener("click", (event) => {
  const at = (selector) => event.target.closest(selector);
  if (at("nav button")) go(at("nav button").dataset.tab);
  else if (at("aside button")) go(state.tab === "overview" || state.tab === "memory-threads" ? "ir" : state.tab, at("aside button").dataset.computation);
  else if (at("[data-goto]")) go("ir", at("[data-goto]").dataset.goto);
  else if (at("[data-pass]")) choosePass(at("section"), at("[data-pass]").dataset.pass);
  else if (at("a.loc, a.graph")) openSource(at("a.loc, a.graph").dataset.file, at("a.loc, a.graph").dataset.line);
  else if (at("figcaption button")) at("figure").hidden = true;
  else if (at("#theme")) theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  else return;
  if (at("a")) event.preventDefault();
});

function theme(name) {
  document.documentElement.dataset.theme = name;
}

const search = document.getElementById("search");
const found = document.getElementById("found");
let hits = [];
let now = -1;

function find() {
  for (const one of all(".hit")) one.classList.remove("hit", "now");
  const wanted = search.value.trim().toLowerCase();
  hits = wanted ? all(".ln").filter((line) => line.textContent.toLowerCase().includes(wanted)) : [];
  for (const one of hits) one.classList.add("hit");
  now = -1;
  found.textContent = wanted ? `${hits.length} lines` : "";
}

function next(step) {
  if (!hits.length) return;
  hits[now]?.classList.remove("now");
  now = (now + step + hits.length) % hits.length;
  const hit = hits[now];
  const panel = hit.closest("section");
  go(panel.dataset.panel, panel.dataset.of);
  const body = hit.closest("[data-body]");
  if (body) choosePass(panel, body.dataset.body);
  const details = hit.closest("details");
  if (details) details.open = true;
  hit.classList.add("now");
  hit.scrollIntoView({ block: "center" });
  found.textContent = `${now + 1} of ${hits.length}`;
}

search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target !== search) {
    search.focus();
    event.preventDefault();
  }
});

theme(new URLSearchParams(location.search).get("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
const [tab, of] = location.hash.slice(1).split("/");
if (all("nav button").some((one) => one.dataset.tab === tab)) state.tab = tab;
if (all("aside button").some((one) => one.dataset.computation === of)) state.of = of;
const asked = new URLSearchParams(location.search);
show();
if (asked.get("pass")) for (const panel of all("section[data-panel=ir]")) {
  const named = all("[data-pass]", panel).find((one) => one.firstChild.textContent === asked.get("pass"));
  if (named && !named.disabled) choosePass(panel, named.dataset.pass);
}
if (asked.get("search")) { search.value = asked.get("search"); find(); }
document.documentElement.dataset.ready = "yes";
