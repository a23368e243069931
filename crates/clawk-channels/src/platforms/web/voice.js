"use strict";
// Recording and playing, on the page of a `voice` channel only. `app.js` is loaded before it.
const MAX_SECONDS = 295, MAX_BYTES = 2_900_000, KIND = "audio/webm";
let recorder = null, ticking = null, sound = null, hushed = 0, turn = Promise.resolve();
// Recordings of this page, and answers that it has played.
const mine = new Set(), played = new Set();

function control(id, label, title) {
  const button = document.createElement("button");
  button.id = id;
  button.type = "button";
  button.textContent = label;
  button.title = title;
  byId("say").insertBefore(button, byId("say").lastElementChild);
  return button;
}
const discard = control("discard", "Discard", "Throw the recording away");
const record = control("record", "Record", "Record a message");
const hush = control("hush", "Stop speaking", "Stop the spoken answer");
discard.hidden = hush.hidden = true;
byId("say").classList.add("voice");

function elapsed(since) {
  const seconds = Math.floor((performance.now() - since) / 1000);
  return [seconds, Math.floor(seconds / 60) + ":" + String(seconds % 60).padStart(2, "0")];
}

function idle() {
  clearInterval(ticking);
  recorder = null;
  record.textContent = "Record";
  record.title = "Record a message";
  record.removeAttribute("aria-pressed");
  discard.hidden = true;
  byId("say").classList.remove("recording");
}

async function begin() {
  if (!navigator.mediaDevices || !window.MediaRecorder) { tell("Recording needs HTTPS, or a page on this machine."); return; }
  if (!MediaRecorder.isTypeSupported(KIND)) { tell("This browser can't record WebM."); return; }
  record.disabled = true;
  let stream;
  try { stream = await navigator.mediaDevices.getUserMedia({ audio: true }); }
  catch { tell("The microphone can't be used. Allow it for this page."); return; }
  finally { record.disabled = false; }
  hushNow();
  const where = conversation, pieces = [], since = performance.now();
  const now = recorder = new MediaRecorder(stream, { mimeType: KIND, audioBitsPerSecond: 32000 });
  now.ondataavailable = (event) => pieces.push(event.data);
  now.onstop = () => {
    for (const track of stream.getTracks()) track.stop();
    const thrown = now.thrown;
    idle();
    if (thrown) { tell("The recording was thrown away."); return; }
    hand(where, new Blob(pieces, { type: KIND }));
  };
  now.start(1000);
  record.setAttribute("aria-pressed", "true");
  record.title = "Stop and send";
  discard.hidden = false;
  byId("say").classList.add("recording");
  const tick = () => {
    const [seconds, text] = elapsed(since);
    record.textContent = "Send " + text;
    tell("Recording … " + text);
    if (seconds >= MAX_SECONDS && now.state === "recording") now.stop();
  };
  tick();
  ticking = setInterval(tick, 250);
}

async function hand(where, blob) {
  if (blob.size > MAX_BYTES) { tell("The recording is too large. Record a shorter one."); return; }
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  mine.add(id);
  tell("Sending the recording …");
  try {
    const data = base64(new Uint8Array(await blob.arrayBuffer()));
    await ask("record", { id, conversation: where, media_type: KIND, data });
    tell("The recording is turned into words …");
  } catch (error) { tell(error.message); }
}

function hushNow() {
  hushed += 1;
  if (sound) sound.pause();
}

async function aloud(where, entry) {
  const before = hushed;
  for (let piece = 0; before === hushed; piece += 1) {
    const answer = await fetch("?speech", {
      method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ conversation: where, entry, piece }),
    });
    if (answer.status === 503) tell("This answer could not be spoken.");
    if (!answer.ok || before !== hushed) return;
    const url = URL.createObjectURL(await answer.blob());
    hush.hidden = false;
    try {
      sound = new Audio(url);
      await new Promise((done) => {
        sound.onended = sound.onpause = sound.onerror = done;
        sound.play().catch(done);
      });
    } finally {
      sound = null;
      hush.hidden = true;
      URL.revokeObjectURL(url);
    }
  }
}

record.onclick = () => { if (recorder) recorder.stop(); else begin(); };
discard.onclick = () => { if (recorder) { recorder.thrown = true; recorder.stop(); } };
hush.onclick = hushNow;
heard.push((entry) => {
  if (entry.who !== "agent" || entry.live || entry.refused || !mine.has(entry.of) || played.has(entry.id)) return;
  played.add(entry.id);
  const where = conversation;
  turn = turn.then(() => aloud(where, entry.id)).catch(() => {});
});
