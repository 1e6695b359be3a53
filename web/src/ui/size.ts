const UNITS = ["bytes", "kB", "MB", "GB"];

/** The name of a file without letters that nobody sees, as those that turn others round: it shall end as it does. */
export const nameText = (name: string): string => name.replace(/[\p{Cc}\p{Cf}]/gu, "");

/** `12 bytes`, `3.4 kB`, `12 MB` */
export function sizeText(bytes: number): string {
  let size = bytes;
  let unit = 0;
  while (size >= 999.5 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 9.95 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}
