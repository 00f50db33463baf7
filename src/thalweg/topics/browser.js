"use strict";
// The page is readable without this: it shows one topic at a time and searches. Text enters the page as text only.
const { words, topics } = JSON.parse(document.getElementById("data").textContent);
const sections = [...document.querySelectorAll(".topic")];
const found = document.getElementById("found");

function choose() {
  const wanted = document.getElementById(location.hash.slice(1));
  const chosen = sections.includes(wanted) ? wanted : sections[0];
  for (const section of sections) section.classList.toggle("chosen", section === chosen);
  for (const link of document.querySelectorAll("svg a")) {
    const mine = link.getAttribute("href") === "#" + chosen.id;
    link.classList.toggle("chosen-mark", mine);
    if (mine) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  }
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function link(topic, text) {
  const made = element("a", text);
  made.href = "#topic-" + (topic + 1);
  return made;
}

function search(text) {
  const wanted = text.trim().toLowerCase();
  found.replaceChildren();
  if (!wanted) return;
  const hits = words.filter(([word]) => word.toLowerCase().includes(wanted));
  hits.sort((a, b) => b[0].toLowerCase().startsWith(wanted) - a[0].toLowerCase().startsWith(wanted));
  for (const [word, shares] of hits.slice(0, 8)) {
    const item = document.createElement("li");
    item.append(element("bdi", word));
    for (const [topic, share] of shares) item.append(link(topic, topic + 1 + " (" + Math.round(100 * share) + " %)"));
    found.append(item);
  }
  const titles = topics.flatMap((list, topic) => list.filter((title) => title.toLowerCase().includes(wanted))
    .map((title) => [title, topic]));
  for (const [title, topic] of titles.slice(0, 5)) {
    const item = document.createElement("li");
    item.append(element("bdi", title), link(topic, "topic " + (topic + 1)));
    found.append(item);
  }
  if (!found.children.length) found.append(element("li", "No word and no document shown here contains this."));
}

document.body.classList.add("one");
document.getElementById("search").addEventListener("input", (event) => search(event.target.value));
document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input")) return;
  const now = sections.findIndex((section) => section.classList.contains("chosen"));
  location.hash = sections[(now + step + sections.length) % sections.length].id;
});
addEventListener("hashchange", choose);
choose();
