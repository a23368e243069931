// Drives the page of a `web` channel in a real browser, and prints what it saw as one JSON line.
//
//   node web_page.js PARTS URL TOKEN SCREENSHOT
"use strict";
const [parts, url, token, shot] = process.argv.slice(2);
const { chromium } = require(parts + "/browser/node_modules/playwright-core");

(async () => {
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const seen = { alerts: 0, errors: [], violations: 0 };
  try {
    const page = await browser.newPage({ viewport: { width: 1100, height: 760 } });
    page.setDefaultTimeout(15000);
    page.on("dialog", (dialog) => { seen.alerts += 1; dialog.dismiss(); });
    page.on("pageerror", (error) => seen.errors.push(String(error)));
    await page.goto(url);
    await page.fill("#token", "wrong");
    await page.click("#login button");
    await page.waitForFunction(() => document.getElementById("login-error").textContent !== "");
    seen.wrong = await page.textContent("#login-error");
    await page.fill("#token", token);
    await page.click("#login button");
    await page.waitForSelector("#chat:not([hidden])");
    seen.who = await page.textContent("#who");
    const say = async (text, count) => {
      await page.fill("#text", text);
      await page.press("#text", "Enter");
      await page.waitForFunction((count) => document.querySelectorAll(".message.agent").length >= count, count);
    };
    await say("say **bold** and `code`\n\n* one\n* two\n\n[good](https://example.org) [bad](javascript:alert(1))", 1);
    seen.bold = await page.textContent(".message.agent b");
    seen.links = await page.$$eval(".message.agent a", (all) => all.map((a) => a.getAttribute("href")));
    await say("say <img src=x onerror=alert(1)><script>alert(2)</scr" + "ipt> \"' **fat**", 2);
    seen.foreign = await page.$$eval(".message.agent img, .message.agent script", (all) => all.length);
    seen.shown = await page.textContent(".message.agent:nth-of-type(4)");
    // A file, as a person picks one.
    await page.setInputFiles("#file", { name: "../../x.txt", mimeType: "text/plain", buffer: Buffer.from("hello") });
    await page.waitForFunction(() => document.getElementById("state").textContent.includes("x.txt"));
    await say("say filed", 3);
    // A question with buttons.
    await page.fill("#text", "write a note");
    await page.press("#text", "Enter");
    await page.waitForSelector(".choices button");
    await page.screenshot({ path: shot });
    // On a phone nothing is wider than the screen, and every button can be reached.
    await page.setViewportSize({ width: 390, height: 844 });
    await page.screenshot({ path: shot.replace(/\.png$/, "-phone.png") });
    seen.phone = await page.evaluate(() => {
      const fits = (one) => { const box = one.getBoundingClientRect(); return box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight; };
      return [document.documentElement.scrollWidth <= innerWidth, ...["leave", "fresh", "text", "pick"].map((id) => fits(document.getElementById(id))), fits(document.querySelector("#say button"))];
    });
    await page.setViewportSize({ width: 1100, height: 760 });
    seen.buttons = await page.$$eval(".choices button", (all) => all.map((button) => button.textContent));
    await page.click(".choices button:first-child");
    await page.waitForFunction(() => document.querySelectorAll(".choices").length === 0);
    await page.waitForFunction(() => document.body.textContent.includes("It is over."));
    // The conversation is there after a reload, in its order and without doubles.
    const before = await page.$$eval(".message", (all) => all.map((one) => one.dataset.id));
    await page.reload();
    await page.waitForFunction((count) => document.querySelectorAll(".message").length === count, before.length);
    seen.same = JSON.stringify(before.slice().sort()) === JSON.stringify((await page.$$eval(".message", (all) => all.map((one) => one.dataset.id))).sort());
    const cookies = await page.context().cookies();
    seen.cookies = cookies.map(({ name, httpOnly, sameSite, path }) => ({ name, httpOnly, sameSite, path }));
    seen.readable = await page.evaluate(() => document.cookie);
    // Another person's conversation.
    seen.stranger = await page.evaluate(async () => (await fetch("?events&conversation=bob%2Fmain&after=0")).status);
    await page.click("#leave");
    await page.waitForSelector("#login:not([hidden])");
    seen.out = await page.evaluate(async () => (await fetch("?me")).status);
    await page.screenshot({ path: shot.replace(/\.png$/, "-out.png") });
  } catch (error) {
    seen.failed = String(error);
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(seen));
})();
