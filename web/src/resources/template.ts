/** URI templates (RFC 6570), as far as a person fills them in: each variable has one text. */

const PART = /\{([+#./;?&]?)([^{}]*)\}/g;

/** The names of the variables, each once, in the order in which they come. */
export function variablesOf(template: string): string[] {
  const names = [...template.matchAll(PART)].flatMap(([, , list]) => (list ?? "").split(",").map(nameOf));
  return [...new Set(names.filter(Boolean))];
}

const nameOf = (variable: string): string => variable.replace(/(\*|:\d+)$/, "").trim();

const FIRST: Record<string, string> = {
  "": "",
  "+": "",
  "#": "#",
  ".": ".",
  "/": "/",
  ";": ";",
  "?": "?",
  "&": "&",
};
const BETWEEN: Record<string, string> = {
  "": ",",
  "+": ",",
  "#": ",",
  ".": ".",
  "/": "/",
  ";": ";",
  "?": "&",
  "&": "&",
};

/** The URI with these values; what has none is left out. */
export function expand(template: string, values: Record<string, string>): string {
  return template.replace(PART, (_, operator: string, list: string) => {
    const parts = list
      .split(",")
      .map(nameOf)
      .filter((name) => values[name])
      .map((name) => {
        const text = values[name] ?? "";
        const written = "+#".includes(operator || "x") ? encodeURI(text) : encodeURIComponent(text);
        return ";?&".includes(operator || "x") ? `${name}=${written}` : written;
      });
    return parts.length === 0 ? "" : `${FIRST[operator]}${parts.join(BETWEEN[operator])}`;
  });
}
