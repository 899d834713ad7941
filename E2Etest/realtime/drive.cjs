// Plays a session with OpenAI's JavaScript client: a script on stdin, what was seen on stdout.
const { createRequire } = require("node:module");
const script = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const load = createRequire(script.home + "/");
const OpenAI = load(script.package);
globalThis.WebSocket ??= load("ws").WebSocket; // what a browser has, and newer versions of node

const client = new OpenAI({ apiKey: script.key, baseURL: script.base, dangerouslyAllowBrowser: true });
const module_ = load(script.package + "/" + script.module);
const Socket = module_.OpenAIRealtimeWS ?? module_.OpenAIRealtimeWebSocket;
const talk = new Socket({ ...script.props, dangerouslyAllowBrowser: true }, client);
const seen = { events: [], protocol: null, code: null, reason: null };

talk.on("event", (event) => {
  seen.events.push(event);
  seen.protocol = talk.socket.protocol;
  if (seen.events.length === 1) script.send.forEach((each) => talk.send(each));
  if (seen.events.filter((each) => each.type === script.until).length === 1) talk.close();
});
talk.on("error", () => {});
talk.socket.addEventListener("close", ({ code, reason }) => {
  process.stdout.write(JSON.stringify({ ...seen, code, reason }));
});
