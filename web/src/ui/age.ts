const UNITS: [number, string][] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
];

/** `42 s`, `3 min 5 s`, `2 d 4 h`: two units at most. */
export function ageText(age: number): string {
  let left = Math.max(0, Math.floor(age));
  const parts: string[] = [];
  for (const [seconds, unit] of UNITS) {
    if (left < seconds && parts.length === 0) continue;
    parts.push(`${Math.floor(left / seconds)} ${unit}`);
    left %= seconds;
  }
  parts.push(`${left} s`);
  return parts.slice(0, 2).join(" ");
}
