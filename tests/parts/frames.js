// A program that talks to a `web` channel over a WebSocket, and prints what it saw as one JSON line.
//
//   node --experimental-websocket frames.js URL TOKEN
"use strict";
const [url, token] = process.argv.slice(2);
const coded = Buffer.from(token).toString("base64url");
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

function open(protocols) {
  const socket = new WebSocket(url, protocols);
  socket.binaryType = "arraybuffer";
  const seen = [];
  let wake = () => {};
  const closed = new Promise((done) => { socket.onclose = (event) => { done(event.code); wake(); }; });
  const opened = new Promise((done, failed) => { socket.onopen = done; socket.onerror = () => failed(new Error("refused")); });
  socket.onmessage = (event) => { seen.push(JSON.parse(event.data)); wake(); };
  const next = async (wanted) => {
    const until = Date.now() + 20000;
    while (Date.now() < until) {
      const at = seen.findIndex(wanted);
      if (at >= 0) return seen.splice(0, at + 1)[at];
      await Promise.race([wait(100), new Promise((done) => { wake = done; })]);
    }
    throw new Error("nothing came of " + wanted);
  };
  const say = (frame) => socket.send(JSON.stringify(frame));
  return { socket, opened, closed, next, say };
}

(async () => {
  const told = {};
  const mine = ["clawk.v1", "bearer." + coded];
  const one = open(mine);
  await one.opened;
  told.protocol = one.socket.protocol;
  one.say({ type: "hello", session: null, after: 0 });
  const hello = await one.next((frame) => frame.type === "hello");
  one.say({ type: "message", id: "m1", text: "hello there" });
  told.accepted = await one.next((frame) => frame.type === "accepted");
  told.answer = await one.next((frame) => frame.type === "message");
  one.say({ type: "ack", seq: told.answer.seq });
  one.socket.close(1000);
  told.left = await one.closed;

  const two = open(mine);
  await two.opened;
  two.say({ type: "hello", session: hello.session, after: 0 });
  told.again = await two.next((frame) => frame.type === "message");
  // Text of 1 MiB and a byte.
  two.socket.send("x".repeat((1 << 20) + 1));
  told.long = await two.closed;

  const three = open(mine);
  await three.opened;
  three.socket.send("no JSON");
  told.wrong = await three.closed;

  told.guess = await open(["clawk.v1", "bearer." + Buffer.from("guess").toString("base64url")]).opened.then(() => "open", (error) => error.message);
  console.log(JSON.stringify(told));
  process.exit(0);
})().catch((error) => { console.log(JSON.stringify({ failed: String(error) })); process.exit(0); });
