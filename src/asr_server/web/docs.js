// The page of the API: Swagger UI with the schema of the server, for which a server with keys asks for one of them.

import { authorization, key, keepKey, url } from "./api.js";

const find = (id) => document.getElementById(id);

async function show() {
  const answer = await fetch(url("openapi.json"), { headers: authorization(), cache: "no-store" }).catch(() => null);
  find("key-form").hidden = answer?.status !== 401;
  find("key-wrong").hidden = key() === "";
  find("problem").hidden = Boolean(answer?.ok) || answer?.status === 401;
  find("problem").textContent = `The schema cannot be read: ${answer ? `status ${answer.status}` : "the server does not answer"}.`;
  if (!answer?.ok) return;
  const ui = SwaggerUIBundle({ spec: await answer.json(), dom_id: "#swagger-ui", deepLinking: true });
  if (key()) ui.preauthorizeApiKey("key", key()); // under its name in the schema
}

find("key-form").onsubmit = (event) => {
  event.preventDefault();
  keepKey(find("key-field").value);
  show();
};
show();
