// Records on the page of a `voice` channel in a real browser, and prints what it saw as one JSON line.
//
//   node voice_page.js PARTS URL TOKEN SCREENSHOT
"use strict";
const [parts, url, token, shot] = process.argv.slice(2);
const { chromium } = require(parts + "/browser/node_modules/playwright-core");

(async () => {
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
      "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required"],
  });
  const seen = { errors: [], violations: [] };
  try {
    const page = await browser.newPage({ viewport: { width: 1100, height: 760 } });
    page.setDefaultTimeout(15000);
    page.on("pageerror", (error) => seen.errors.push(String(error)));
    page.on("console", (line) => { if (line.text().includes("Content Security Policy")) seen.violations.push(line.text()); });
    await page.goto(url);
    await page.fill("#token", token);
    await page.click("#login button");
    await page.waitForSelector("#record");
    const recording = (seconds) => page.waitForFunction((text) => document.getElementById("state").textContent === text, "Recording … 0:0" + seconds);
    // One that is thrown away.
    await page.click("#record");
    await recording(1);
    await page.click("#discard");
    await page.waitForFunction(() => document.getElementById("state").textContent.includes("thrown away"));
    seen.thrown = await page.$$eval(".message", (all) => all.length);
    // One that is sent.
    await page.click("#record");
    await recording(2);
    seen.while = await page.textContent("#state");
    await page.screenshot({ path: shot });
    await page.setViewportSize({ width: 390, height: 844 });
    await page.screenshot({ path: shot.replace(/\.png$/, "-phone.png") });
    seen.phone = await page.evaluate(() => {
      const fits = (one) => { const box = one.getBoundingClientRect(); return box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight; };
      return [document.documentElement.scrollWidth <= innerWidth, fits(document.getElementById("record")), fits(document.getElementById("discard"))];
    });
    await page.click("#record");
    await page.waitForSelector(".message.you");
    seen.you = await page.textContent(".message.you");
    await page.waitForSelector(".message.agent");
    seen.agent = await page.textContent(".message.agent");
    // It is played; the button that stops it shows, and goes when it is over.
    await page.waitForSelector("#hush:not([hidden])");
    seen.room = await page.evaluate(() => document.getElementById("text").offsetWidth > 300 && document.documentElement.scrollWidth <= innerWidth);
    await page.screenshot({ path: shot.replace(/\.png$/, "-spoken-phone.png") });
    await page.setViewportSize({ width: 1100, height: 760 });
    await page.screenshot({ path: shot.replace(/\.png$/, "-spoken.png") });
    await page.waitForSelector("#hush", { state: "hidden" });
    seen.played = true;
    // The next one is stopped.
    await page.click("#record");
    await recording(1);
    await page.click("#record");
    await page.waitForSelector("#hush:not([hidden])");
    const begun = Date.now();
    await page.click("#hush");
    await page.waitForSelector("#hush", { state: "hidden" });
    seen.hushed = Date.now() - begun < 1900;
    const entry = await page.$eval(".message.agent", (one) => one.dataset.id);
    seen.again = await page.evaluate(async (entry) => {
      const post = async (query, body, kind = "application/json", credentials = "same-origin") =>
        (await fetch("?" + query, { method: "POST", credentials, headers: { "Content-Type": kind }, body: JSON.stringify(body) })).status;
      const record = { id: "0123456789abcdef", conversation: "ann/main", media_type: "audio/webm", data: "AAAA" };
      return [
        await post("speech", { conversation: "ann/main", entry, piece: 0 }),
        await post("speech", { conversation: "ann/main", entry, piece: 99 }),
        await post("speech", { conversation: "bob/main", entry, piece: 0 }),
        await post("record", { ...record, conversation: "bob/main" }),
        await post("record", { ...record, media_type: "text/html" }),
        await post("record", record, "text/plain"),
        await post("record", record, "application/json", "omit"),
      ];
    }, entry);
  } catch (error) {
    seen.failed = String(error);
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(seen));
})();
