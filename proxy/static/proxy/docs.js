// Shows the OpenAPI document with Swagger UI.
"use strict";

const place = document.getElementById("docs");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const setTheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
setTheme();
dark.addEventListener("change", setTheme);

// Swagger UI fills in the example of each parameter. A list with every filter filled in is empty,
// so examples of optional parameters become a part of the description. The errors have the same
// shape in every operation, so only their descriptions are shown.
function condense(spec) {
  for (const operation of Object.values(spec.paths).flatMap(Object.values)) {
    for (const parameter of operation.parameters || []) {
      if (parameter.required) continue;
      const example = [].concat(parameter.example).join(",");
      parameter.description += ` Example: \`${example}\`.`;
      delete parameter.example;
    }
    for (const [code, response] of Object.entries(operation.responses)) {
      const name = (response.$ref || "").split("/").pop();
      if (name) operation.responses[code] = { description: spec.components.responses[name].description };
    }
  }
  return spec;
}

fetch(place.dataset.schema)
  .then((response) => response.json())
  .then((spec) => SwaggerUIBundle({
    domNode: place,
    spec: condense(spec),
    presets: [SwaggerUIBundle.presets.apis],
    layout: "BaseLayout",
    deepLinking: true,
    docExpansion: "none",
    defaultModelsExpandDepth: -1,
    filter: true,
    validatorUrl: null,
  }));
