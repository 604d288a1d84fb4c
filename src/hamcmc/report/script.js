// The switches and players of a page, and its life while a run goes on; plots.js comes before it.

// --- switches: one click shows or hides a chain, or a curve, in all plots ---

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-key]");
  if (!button) return;
  const key = button.dataset.key;
  const keys = key === "*" ? others(button).map((b) => b.dataset.key) : [key];
  const show = keys.some((k) => hidden.has(k));
  for (const k of keys) if (show) hidden.delete(k); else hidden.add(k);
  press();
  redrawAll();
});

// Where many lines cross, the one whose switch is pointed at or focused stands out.
for (const [name, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) {
  document.addEventListener(name, (event) => {
    const button = event.target.closest?.("button[data-key]");
    if (!button || (name === "focusin" && !button.matches(":focus-visible"))) return;
    const now = on && button.dataset.key !== "*" ? button.dataset.key : null;
    if (now === lit) return;
    lit = now;
    redrawAll();
  });
}

// The switches beside the one for all of them.
const others = (all) => [...all.parentElement.querySelectorAll("[data-key]")].filter((b) => b !== all);

function press() {
  const on = (button) => !hidden.has(button.dataset.key);
  for (const button of document.querySelectorAll("button[data-key]")) {
    button.disabled = false;
    button.setAttribute("aria-pressed", button.dataset.key === "*" ? others(button).every(on) : on(button));
  }
}

// --- players: switch between recordings at the same moment ---

function setUpPlayer(player) {
  const figures = [...player.querySelectorAll("figure")], sounds = figures.map((f) => f.querySelector("audio"));
  const row = make("div", { class: "choices", role: "group", "aria-label": "Recording" });
  let now = 0;
  const show = () => figures.forEach((figure, i) => {
    figure.hidden = i !== now;
    buttons[i].setAttribute("aria-pressed", i === now);
  });
  const buttons = figures.map((figure, i) => {
    const button = make("button", { type: "button" }, figure.querySelector("figcaption").textContent);
    button.addEventListener("click", () => {
      const last = sounds[now], plays = !last.paused;
      if (i === now) return;
      last.pause();
      now = i;
      show();
      sounds[i].currentTime = Math.min(last.currentTime, sounds[i].duration || Infinity);
      sounds[i].volume = last.volume;
      if (plays) sounds[i].play();
    });
    figure.querySelector("figcaption").hidden = true;
    return button;
  });
  const follow = ({ target }) => {
    if (target !== sounds[now]) return;
    for (const plot of plots.values()) {
      if (plot.spec.x?.label !== "seconds") continue;
      plot.heard = target.currentTime;
      plot.redraw();
    }
  };
  for (const sound of sounds) for (const moved of ["timeupdate", "seeked"]) sound.addEventListener(moved, follow);
  row.append(...buttons);
  player.prepend(row);
  player.dataset.ready = "";
  show();
}

function setUp() {
  for (const [figure, plot] of plots) {
    if (figure.isConnected) continue;
    sizes.unobserve(plot.box);
    views.unobserve(plot.box);
    plots.delete(figure);
  }
  for (const figure of document.querySelectorAll("figure.plot")) {
    const plot = plots.get(figure);
    if (!plot?.box.isConnected) plots.set(figure, new Plot(figure));
    else if (plot.source !== figure.dataset.plot) plot.read();
  }
  document.querySelectorAll(".player:not([data-ready])").forEach(setUpPlayer);
  press();
}

document.documentElement.classList.add("script");
setUp();

// --- while a run goes on: take over what is new, and leave alone what the reader has opened, hidden or pointed at ---

function morph(old, fresh) {
  const alike = old.nodeName === fresh.nodeName && old.id === fresh.id && old.className === fresh.className;
  if (!alike) return old.replaceWith(document.importNode(fresh, true));
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  const theirs = ({ name }) => !["open", "disabled", "aria-pressed"].includes(name);
  for (const { name, value } of [...fresh.attributes].filter(theirs))
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes].filter(theirs)) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  if (old.matches(".box, .player")) return; // the script's own
  const now = [...old.childNodes], then = [...fresh.childNodes];
  then.forEach((child, i) => (now[i] ? morph(now[i], child) : old.append(document.importNode(child, true))));
  now.slice(then.length).forEach((child) => child.remove());
}

async function follow() {
  const get = async (path) => {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };
  const progress = () => document.getElementById("progress");
  let shown = progress().dataset.version, busy = false;
  const refresh = async () => {
    busy = true; // a large run's page takes a while; its progress goes on meanwhile
    try {
      const page = await get("./"), top = page.getElementById("progress");
      shown = top.dataset.version;
      top.replaceWith(page.importNode(progress(), true));
      for (const part of ["header", "main", "footer"]) morph(document.querySelector(part), page.querySelector(part));
      setUp();
    } finally {
      busy = false;
    }
  };
  for (;;) {
    await new Promise((then) => setTimeout(then, 1000));
    if (document.hidden) continue;
    try {
      morph(progress(), (await get("progress")).getElementById("progress"));
      if (progress().dataset.version !== shown && !busy) refresh().catch(() => {}); // it is asked again
    } catch {
      progress().querySelector(".message")?.remove();
      const lost = "hamcmc watch does not answer: this page shows what it said last.";
      progress().append(make("p", { class: "message warn" }, lost));
    }
  }
}

if (document.body.dataset.live) follow();
