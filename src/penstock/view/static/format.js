// Figures as people read them.

export function count(value) {
  if (typeof value !== "number") return String(value);
  return Math.abs(value) >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let value = bytes, unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : Number(value.toPrecision(2))} ${units[unit]}`;
}

export function percent(share) {
  const value = share * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : Number(value.toPrecision(2))} %`;
}

export function figure(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(5)));
}

// A statistic, of which the first digits matter.
export function rough(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(3))) : String(value);
}

export function shape(sizes) {
  return sizes.length ? sizes.join(" × ") : "scalar";
}

export function seconds(value) {
  const [part, unit] = value >= 5400 ? [value / 3600, "h"] : value >= 90 ? [value / 60, "min"] : [value, "s"];
  return `${part >= 10 ? Math.round(part) : Number(part.toPrecision(2))} ${unit}`;
}
