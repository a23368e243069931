"use strict";
// The page of a `web` channel. The agent's texts are HTML that the server made of Markdown, with everything else escaped; a
// person's texts are only ever set as text.
const byId = (id) => document.getElementById(id);
// Called with every entry that comes.
const heard = [];
let user = null, conversation = null, source = null, rev = 0, picked = [];

async function ask(query, body) {
  const answer = await fetch("?" + query, {
    method: body === undefined ? "GET" : "POST",
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
  });
  const value = await answer.json().catch(() => ({ error: "the answer can't be read" }));
  if (answer.status === 401) show(null);
  if (!answer.ok) throw new Error(value.error || "it failed");
  return value;
}

function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}

function tell(text) { byId("state").textContent = text; }

function show(name) {
  user = name;
  byId("login").hidden = name !== null;
  byId("chat").hidden = name === null;
  byId("who").textContent = name || "";
  if (name === null && source) { source.close(); source = null; }
}

function draw(entry) {
  const box = byId("messages");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  let at = [...box.children].find((child) => child.dataset.id === entry.id);
  if (!at) {
    at = document.createElement("div");
    at.dataset.id = entry.id;
    box.append(at);
  }
  at.className = "message " + entry.who;
  at.replaceChildren();
  const text = document.createElement("div");
  if (entry.who === "agent") text.innerHTML = entry.text; else text.textContent = entry.text;
  at.append(text);
  if (entry.files && entry.files.length) {
    const files = document.createElement("div");
    files.className = "files";
    for (const file of entry.files) {
      const link = document.createElement("a");
      link.href = "?file=" + encodeURIComponent(file.id) + "&conversation=" + encodeURIComponent(conversation);
      link.textContent = file.name;
      files.append(link);
    }
    at.append(files);
  }
  if (entry.question && entry.choices) {
    const row = document.createElement("div");
    row.className = "choices";
    for (const [choice, label] of entry.choices) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.onclick = () => ask("press", { question: entry.question, choice, conversation })
        .then((answer) => tell(answer.told), (error) => tell(error.message));
      row.append(button);
    }
    at.append(row);
  }
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function open(name) {
  conversation = name;
  rev = 0;
  byId("messages").replaceChildren();
  tell("");
  list();
  listen();
}

function listen() {
  if (source) source.close();
  const mine = conversation;
  source = new EventSource("?events&conversation=" + encodeURIComponent(mine) + "&after=" + rev);
  source.addEventListener("entry", (event) => {
    if (mine !== conversation) return;
    const entry = JSON.parse(event.data);
    rev = Math.max(rev, entry.rev);
    draw(entry);
    for (const hear of heard) hear(entry);
    if (entry.who === "agent") tell("");
  });
  source.addEventListener("typing", () => { if (mine === conversation) tell("The agent is writing …"); });
  source.onerror = () => {
    // The browser's own retry would ask for what is shown already.
    if (source && mine === conversation) {
      source.close();
      tell("Not connected. Trying again …");
      setTimeout(() => { if (mine === conversation && user) listen(); }, 2000);
    }
  };
  source.onopen = () => { if (byId("state").textContent.startsWith("Not connected")) tell(""); };
}

async function list() {
  const { conversations } = await ask("list");
  const all = conversations.includes(conversation) || !conversation ? conversations : [conversation, ...conversations];
  byId("list").replaceChildren(...all.map((name) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name.slice(name.indexOf("/") + 1);
    if (name === conversation) button.setAttribute("aria-current", "true");
    button.onclick = () => open(name);
    return button;
  }));
  return all;
}

let voiced = false;
async function enter(name) {
  show(name);
  const me = await ask("me");
  if (me.records && !voiced) {
    voiced = true;
    const script = document.createElement("script");
    script.src = "?asset=voice.js";
    document.head.append(script);
  }
  const { conversations } = await ask("list");
  open(conversations[0] || name + "/main");
}

byId("login").onsubmit = async (event) => {
  event.preventDefault();
  byId("login-error").textContent = "";
  try {
    const answer = await ask("login", { token: byId("token").value });
    byId("token").value = "";
    await enter(answer.user);
  } catch (error) { byId("login-error").textContent = error.message; }
};
byId("leave").onclick = () => ask("logout", {}).finally(() => show(null));
byId("fresh").onclick = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(6));
  open(user + "/" + [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
};
byId("file").onchange = async () => {
  for (const file of byId("file").files) {
    if (file.size > 2 << 20) { tell(file.name + " is larger than 2 MiB"); continue; }
    const data = base64(new Uint8Array(await file.arrayBuffer()));
    picked.push({ name: file.name, media_type: file.type || "application/octet-stream", data });
  }
  byId("file").value = "";
  if (picked.length) tell("With the next message: " + picked.map((file) => file.name).join(", "));
};
byId("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId("say").requestSubmit(); }
};
byId("say").onsubmit = async (event) => {
  event.preventDefault();
  const text = byId("text").value;
  if (!text.trim() && !picked.length) return;
  const attachments = picked;
  picked = [];
  byId("text").value = "";
  try {
    // The same id is the same message, however often it is sent.
    await ask("say", { id: [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join(""), conversation, text, attachments });
  } catch (error) { tell(error.message); byId("text").value = text; picked = attachments; }
};
ask("me").then((answer) => enter(answer.user), () => show(null));
