const UNITS = ["bytes", "kB", "MB", "GB"];

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
