"use strict";
const details = JSON.parse(document.getElementById("details").textContent);
const cards = [...document.querySelectorAll("#grid > li")];
const dialog = document.getElementById("detail"), content = document.getElementById("content");
const words = document.getElementById("words"), kind = document.getElementById("kind");
let shown = 0;

function make(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function percent(share) { return (100 * share).toFixed(1) + " %"; }

function visible() { return cards.filter((card) => !card.hidden); }

function filter() {
  const wanted = words.value.trim().toLowerCase();
  for (const [number, card] of cards.entries()) {
    const row = details[number];
    const text = [row.file, ...row.answer.map((pair) => pair[0])].join("\n").toLowerCase();
    card.hidden = !((kind.value === "all" || card.dataset.kind.split(" ").includes(kind.value)) && text.includes(wanted));
  }
  document.getElementById("count").textContent = visible().length + " of " + cards.length + " photos";
}

function ranking(title, ranked, parent) {
  const part = make("div", undefined, parent);
  make("h3", title, part);
  for (const [label, share] of ranked) {
    const line = make("div", undefined, part);
    line.className = "rank";
    make("span", label, line);
    make("span", percent(share), line);
    const meter = make("meter", undefined, line);
    meter.max = 1;
    meter.value = share;
    meter.setAttribute("aria-label", label + " " + percent(share));
  }
}

function picture(number, parent) {
  const source = cards[number].querySelector("img");
  if (!source) return;
  const image = make("img", undefined, parent);
  image.src = source.src;
  image.alt = details[number].answer.length ? details[number].answer[0][0] : details[number].file;
}

function show(number) {
  const row = details[number];
  shown = number;
  content.replaceChildren();
  document.getElementById("name").textContent = row.file;
  const two = make("div", undefined, content);
  two.className = "two";
  picture(number, make("div", undefined, two));
  if (row.error) make("p", row.error, two).className = "bad";
  else {
    ranking("The photo alone", row.alone, two);
    ranking("The answer, with confidences", row.answer, two);
    if (row.moved !== null) make("p", "Class shares moved " + percent(row.moved) + " of the answer.", content);
    if (row.trust || row.moved === null) make("p", "Trust in the history: " + percent(row.trust) + ".", content);
  }
  if (row.rests_on.length) {
    make("h3", "Photos that the answer rests on", content);
    const list = make("ul", undefined, content);
    list.className = "rests";
    for (const [place, name, weight] of row.rests_on) {
      const button = make("button", undefined, make("li", undefined, list));
      button.type = "button";
      if (place >= 0) picture(place, button);
      make("span", name.split("/").pop() + ", weight " + weight.toFixed(2), button);
      if (place >= 0) button.onclick = () => show(place);
      else button.disabled = true;
    }
  }
  if (!dialog.open) dialog.showModal();
  document.getElementById("name").focus();
}

function step(by) {
  const seen = visible(), next = seen.indexOf(cards[shown]) + by;
  if (next >= 0 && next < seen.length) show(cards.indexOf(seen[next]));
}

function move(event) {
  const seen = visible(), at = seen.findIndex((card) => card.contains(document.activeElement));
  const columns = getComputedStyle(document.getElementById("grid")).gridTemplateColumns.split(" ").length;
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  if (by === undefined || at < 0 || !seen[at + by]) return;
  event.preventDefault();
  seen[at + by].querySelector("button").focus();
}

for (const [number, card] of cards.entries()) card.querySelector("button").onclick = () => show(number);
document.getElementById("before").onclick = () => step(-1);
document.getElementById("after").onclick = () => step(1);
document.getElementById("close").onclick = () => dialog.close();
dialog.onclose = () => cards[shown].querySelector("button").focus();
document.getElementById("controls").onsubmit = (event) => event.preventDefault();
words.oninput = kind.onchange = filter;
document.onkeydown = (event) => {
  if (dialog.open) {
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  } else if (event.key === "/" && document.activeElement !== words) {
    event.preventDefault();
    words.focus();
  } else move(event);
};
filter();
