// A program that talks to a `voice` channel: it says a recording, and prints what it got as one JSON line.
//
//   node --experimental-websocket voice.js URL TOKEN
"use strict";
const [url, token] = process.argv.slice(2);
const socket = new WebSocket(url, ["clawk.v1", "bearer." + Buffer.from(token).toString("base64url")]);
socket.binaryType = "arraybuffer";
const told = { sound: 0 };
const say = (frame) => socket.send(JSON.stringify(frame));
const end = (reason) => { console.log(JSON.stringify({ ...told, reason })); process.exit(0); };
setTimeout(() => end("it took too long"), 25000);
socket.onerror = () => end("the socket broke");
socket.onopen = () => say({ type: "hello", session: null, after: 0 });
socket.onmessage = (event) => {
  if (typeof event.data !== "string") { told.sound += event.data.byteLength; return; }
  const frame = JSON.parse(event.data);
  told[frame.type] = frame;
  if (frame.type === "hello") {
    delete told.hello;
    say({ type: "audio-start", id: "a1", media_type: "audio/pcm;rate=16000" });
    for (let i = 0; i < 4; i += 1) socket.send(new Uint8Array(16000).fill(i));
    say({ type: "audio-end", id: "a1" });
  }
  if (frame.type === "audio-done") end(null);
};
