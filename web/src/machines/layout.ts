/**
 * Where the states of a machine stand in its drawing, and how the transitions run: in layers from `start` down to
 * `end`, as Sugiyama has it. What leads back up is turned round until the layers are found. A transition that passes
 * layers has a point in each of them, and one for its label, so that nothing is drawn over anything else.
 */
import { END, type Machine, START } from "./machine";

export interface PlacedState {
  id: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface PlacedWay {
  from: string;
  to: string;
  /** As the attribute `d` of an SVG path has it. */
  path: string;
  label: { text: string; x: number; y: number; width: number } | null;
}

export interface Layout {
  width: number;
  height: number;
  states: PlacedState[];
  ways: PlacedWay[];
}

const STATE_HEIGHT = 46;
const PILL_HEIGHT = 28;
const LABEL_HEIGHT = 20;
const MOST_NAME = 24;
const MOST_LABEL = 24;
/** Pixels between a layer and what is below it, and how many more if lines run far across. */
const RISE = 19;
const MOST_RISE = 45;
/** Pixels between two states, and between what is narrower. */
const GAP = 34;
const NARROW_GAP = 15;
const MARGIN = 14;
const LOOP = 30;
const SWEEPS = 14;
const PASSES = 10;
/** A transition of a large machine that would need more points than this runs straight to its end. */
const MOST_POINTS = 20_000;

/** More than this is not drawn: nobody could read it, and the list of states says the same. */
export const MOST_STATES = 300;
export const MOST_WAYS = 1500;

/** A state in its layer, or a point of a transition that passes it. */
interface Spot {
  layer: number;
  /** How far it reaches from its x. */
  left: number;
  right: number;
  x: number;
  state: boolean;
  above: Spot[];
  below: Spot[];
  order: number;
}

interface Route {
  way: number;
  /** From the upper end to the lower one. */
  spots: Spot[];
  /** Whether the transition runs the other way. */
  up: boolean;
  label: Spot | null;
}

/** Text as it is drawn: on one line, without what would turn it round, and not longer than there is room for. */
export function shown(text: string, most: number): string {
  const plain = text
    .slice(0, 4 * most + 100)
    .replace(/[\p{Cc}\p{Zl}\p{Zp}\s]+/gu, " ")
    .replace(/[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g, "")
    .trim();
  const letters = [...plain];
  let cells = 0;
  for (const [n, letter] of letters.entries()) {
    cells += cellsOf(letter);
    if (cells > most && (n + 1 < letters.length || cells > most + 1)) {
      return `${letters.slice(0, Math.max(1, n - 1)).join("")}…`;
    }
  }
  return plain;
}

export const stateName = (id: string): string => shown(id, MOST_NAME) || "(no name)";

/** Letters of Chinese, Japanese and Korean, and pictures, are as wide as two others. */
const cellsOf = (letter: string): number =>
  /[\u1100-\u115f\u2e80-\uffdc]|[\u{1f000}-\u{3ffff}]/u.test(letter) ? 2 : 1;
const widthOf = (text: string): number => [...text].reduce((sum, letter) => sum + cellsOf(letter), 0);

export function layOut(machine: Machine): Layout {
  const names = [START, ...machine.states.map((state) => state.id), END];
  const numbers = new Map(names.map((name, n) => [name, n]));
  const ways = machine.transitions.flatMap(({ id: [from, to], label }) => {
    const begin = numbers.get(from);
    const end = numbers.get(to);
    return begin === undefined || end === undefined
      ? []
      : [{ from, to, begin, end, label: shown(label, MOST_LABEL) }];
  });
  const back = backWays(names.length, ways);
  const layers = layersOf(names.length, ways, back);

  const states = names.map<Spot>((name, n) => {
    const half = stateWidth(name) / 2;
    return spot(2 * (layers[n] ?? 0), half, half, true);
  });
  for (const { begin, end, label } of ways) {
    const state = states[begin];
    if (begin === end && state !== undefined)
      state.right = Math.max(state.right, state.left + LOOP + labelWidth(label));
  }
  const routes = routesOf(ways, states, back);
  const all = layered([...states, ...routes.flatMap((route) => route.spots.slice(1, -1))]);
  sortLayers(all);
  placeAcross(all);
  straighten(all, routes);

  const left = Math.min(...all.flat().map((one) => one.x - one.left));
  const width = Math.max(...all.flat().map((one) => one.x + one.right)) - left + 2 * MARGIN;
  for (const one of all.flat()) one.x += MARGIN - left;
  const rows = placeDown(all, routes, names, states);
  const placed = names.map<PlacedState>((id, n) => {
    const { x, layer } = states[n] as Spot;
    const height = heightOf(id);
    return { id, x, y: (rows[layer]?.middle ?? 0) - height / 2, width: stateWidth(id), height };
  });
  return {
    width,
    height: (rows.at(-1)?.bottom ?? 0) + MARGIN,
    states: placed,
    ways: draw(ways, routes, states, placed, rows),
  };
}

const heightOf = (name: string): number => (name === START || name === END ? PILL_HEIGHT : STATE_HEIGHT);

function stateWidth(name: string): number {
  if (name === START || name === END) return 70;
  return Math.max(96, widthOf(stateName(name)) * 8.5 + 30);
}

const labelWidth = (label: string): number => (label === "" ? 0 : widthOf(label) * 6.8 + 14);

const spot = (layer: number, left: number, right: number, state = false): Spot => ({
  layer,
  left,
  right,
  x: 0,
  state,
  above: [],
  below: [],
  order: 0,
});

interface Way {
  from: string;
  to: string;
  begin: number;
  end: number;
  label: string;
}

// --- layers -----------------------------------------------------------------------------------

/** The transitions that lead back to where a walk from `start` has been on its way. */
function backWays(count: number, ways: readonly Way[]): Set<number> {
  const out = outgoing(count, ways);
  const back = new Set<number>();
  const seen = new Uint8Array(count); // 1 while it is on the way, 2 after that
  for (let first = 0; first < count; first++) {
    if (seen[first]) continue;
    const path = [{ state: first, next: 0 }];
    seen[first] = 1;
    for (let top = path.at(-1); top !== undefined; top = path.at(-1)) {
      const way = out[top.state]?.[top.next++];
      if (way === undefined) {
        seen[top.state] = 2;
        path.pop();
        continue;
      }
      const { end } = ways[way] as Way;
      if (seen[end] === 1) back.add(way);
      else if (seen[end] === 0) {
        seen[end] = 1;
        path.push({ state: end, next: 0 });
      }
    }
  }
  return back;
}

function outgoing(count: number, ways: readonly Way[]): number[][] {
  const out: number[][] = Array.from({ length: count }, () => []);
  for (const [n, way] of ways.entries()) out[way.begin]?.push(n);
  return out;
}

/** Each state one layer below the lowest of those that lead to it; `end` below all. */
function layersOf(count: number, ways: readonly Way[], back: ReadonlySet<number>): number[] {
  const layers = new Array<number>(count).fill(0);
  const left = new Array<number>(count).fill(0);
  const down = ways.flatMap((way, n) => {
    if (way.begin === way.end) return [];
    return back.has(n) ? [{ upper: way.end, lower: way.begin }] : [{ upper: way.begin, lower: way.end }];
  });
  const below: number[][] = Array.from({ length: count }, () => []);
  for (const { upper, lower } of down) {
    below[upper]?.push(lower);
    left[lower] = (left[lower] ?? 0) + 1;
  }
  const ready = [...left.keys()].filter((n) => left[n] === 0);
  for (let state = ready.pop(); state !== undefined; state = ready.pop()) {
    for (const next of below[state] ?? []) {
      layers[next] = Math.max(layers[next] ?? 0, (layers[state] ?? 0) + 1);
      left[next] = (left[next] ?? 0) - 1;
      if (left[next] === 0) ready.push(next);
    }
  }
  const end = count - 1;
  layers[end] = Math.max(...layers.map((layer, n) => (n === end ? layer : layer + 1)));
  return layers;
}

/** States stand in even layers. A transition has a point in each layer that it passes, its label beside its begin. */
function routesOf(ways: readonly Way[], states: readonly Spot[], back: ReadonlySet<number>): Route[] {
  const found: Route[] = [];
  let points = 0;
  for (const [way, { begin, end, label }] of ways.entries()) {
    if (begin === end) continue;
    const up = back.has(way);
    const upper = states[up ? end : begin] as Spot;
    const lower = states[up ? begin : end] as Spot;
    const spots = [upper];
    const half = labelWidth(label) / 2;
    const at = up ? lower.layer - 1 : upper.layer + 1;
    const span = lower.layer - upper.layer - 1;
    const isStraight = points + span > MOST_POINTS;
    if (!isStraight) {
      points += span;
      for (let layer = upper.layer + 1; layer < lower.layer; layer++) {
        const reach = layer === at && half > 0 ? half : 3;
        spots.push(spot(layer, reach, reach));
      }
    }
    const labelled =
      isStraight || label === "" ? null : (spots.find((one) => one.layer === at && !one.state) ?? null);
    spots.push(lower);
    if (!isStraight) {
      for (const [n, one] of spots.entries()) {
        const next = spots[n + 1];
        if (next === undefined) break;
        one.below.push(next);
        next.above.push(one);
      }
    }
    found.push({ way, spots, up, label: labelled });
  }
  return found;
}

function layered(spots: readonly Spot[]): Spot[][] {
  const most = Math.max(...spots.map((one) => one.layer));
  const layers: Spot[][] = Array.from({ length: most + 1 }, () => []);
  for (const one of spots) layers[one.layer]?.push(one);
  return layers;
}

// --- the order within a layer -----------------------------------------------------------------

/** Put what belongs together side by side, down and up again, and keep the order with the fewest crossings. */
function sortLayers(layers: Spot[][]): void {
  const number = (layer: Spot[]): void => {
    for (const [n, one] of layer.entries()) one.order = n;
  };
  for (const layer of layers) number(layer);
  let best = layers.map((layer) => [...layer]);
  let fewest = crossings(layers);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep++) {
    const isDown = sweep % 2 === 0;
    for (const layer of isDown ? layers : [...layers].reverse()) {
      const wanted = new Map(layer.map((one) => [one, middle(isDown ? one.above : one.below, one.order)]));
      layer.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0) || a.order - b.order);
      number(layer);
    }
    const now = crossings(layers);
    if (now < fewest) {
      fewest = now;
      best = layers.map((layer) => [...layer]);
    }
  }
  for (const [n, layer] of best.entries()) {
    layers[n] = layer;
    number(layer);
  }
}

const middle = (others: readonly Spot[], otherwise: number): number =>
  others.length === 0 ? otherwise : others.reduce((sum, one) => sum + one.order, 0) / others.length;

/** How many pairs of lines cross between each layer and the next: inversions, counted with a Fenwick tree. */
function crossings(layers: readonly Spot[][]): number {
  let found = 0;
  for (const [n, layer] of layers.entries()) {
    const size = layers[n + 1]?.length ?? 0;
    const tree = new Uint32Array(size + 1);
    let seen = 0;
    for (const one of layer) {
      const ends = one.below.map((lower) => lower.order).sort((a, b) => a - b);
      for (const end of ends) {
        found += seen;
        for (let at = end + 1; at > 0; at -= at & -at) found -= tree[at] ?? 0;
      }
      for (const end of ends) {
        seen += 1;
        for (let at = end + 1; at <= size; at += at & -at) tree[at] = (tree[at] ?? 0) + 1;
      }
    }
  }
  return found;
}

// --- places -----------------------------------------------------------------------------------

/** Move everything as near as possible to what it is joined with, without changing the order. */
function placeAcross(layers: readonly Spot[][]): void {
  for (const layer of layers) settle(layer, () => 0);
  const average = (others: readonly Spot[]): number =>
    others.reduce((sum, one) => sum + one.x, 0) / others.length;
  for (let pass = 0; pass < PASSES; pass++) {
    const isDown = pass % 2 === 0;
    const isLast = pass >= PASSES - 2;
    for (const layer of isDown ? layers : [...layers].reverse()) {
      settle(layer, (one) => {
        const near = isLast ? [...one.above, ...one.below] : isDown ? one.above : one.below;
        return near.length === 0 ? one.x : average(near);
      });
    }
  }
}

/** Have long lines run straight down as far as there is room, and short ones where a state need only move a little. */
function straighten(layers: readonly Spot[][], routes: readonly Route[]): void {
  const room = (one: Spot): [low: number, high: number] => {
    const before = layers[one.layer]?.[one.order - 1];
    const after = layers[one.layer]?.[one.order + 1];
    return [
      before === undefined ? -Infinity : before.x + apart(before, one),
      after === undefined ? Infinity : after.x - apart(one, after),
    ];
  };
  const long = [...routes].sort((a, b) => b.spots.length - a.spots.length);
  for (const { spots } of [...long, ...long]) {
    let run: Spot[] = [];
    let [low, high] = [-Infinity, Infinity];
    const end = (): void => {
      const wanted = run.reduce((sum, one) => sum + one.x, 0) / run.length;
      for (const one of run) one.x = Math.max(low, Math.min(wanted, high));
    };
    for (const one of spots.slice(1, -1)) {
      const [from, to] = room(one);
      if (Math.max(low, from) > Math.min(high, to)) {
        end();
        run = [];
        [low, high] = [-Infinity, Infinity];
      }
      run.push(one);
      [low, high] = [Math.max(low, from), Math.min(high, to)];
    }
    if (run.length > 0) end();
  }
  for (const one of layers.flat()) {
    const [only] = one.above.length === 1 ? one.above : one.below.length === 1 ? one.below : [];
    const [low, high] = room(one);
    if (
      one.state &&
      only !== undefined &&
      Math.abs(only.x - one.x) < NARROW_GAP &&
      low <= only.x &&
      only.x <= high
    ) {
      one.x = only.x;
    }
  }
}

/** How far the places of two neighbours are from each other, at least. */
const apart = (left: Spot, right: Spot): number =>
  left.right + right.left + (left.state && right.state ? GAP : NARROW_GAP);

/**
 * Give a layer the places that it wants, as far as there is room: the sum of the squares of what each has to give up
 * is the least (isotonic regression by pooling neighbours). Points of long lines weigh more, so that those are straight.
 */
function settle(layer: readonly Spot[], wanted: (one: Spot) => number): void {
  const offsets: number[] = [];
  let offset = 0;
  for (const [n, one] of layer.entries()) {
    const before = layer[n - 1];
    if (before !== undefined) offset += apart(before, one);
    offsets.push(offset);
  }
  const pools: { sum: number; weight: number; count: number }[] = [];
  for (const [n, one] of layer.entries()) {
    const weight = one.state ? 1 : 3;
    let pool = { sum: weight * (wanted(one) - (offsets[n] ?? 0)), weight, count: 1 };
    for (
      let last = pools.at(-1);
      last !== undefined && last.sum / last.weight > pool.sum / pool.weight;
      last = pools.at(-1)
    ) {
      pools.pop();
      pool = { sum: last.sum + pool.sum, weight: last.weight + pool.weight, count: last.count + pool.count };
    }
    pools.push(pool);
  }
  let n = 0;
  for (const { sum, weight, count } of pools) {
    for (let left = count; left > 0; left--, n++) (layer[n] as Spot).x = sum / weight + (offsets[n] ?? 0);
  }
}

interface Row {
  top: number;
  middle: number;
  bottom: number;
}

function placeDown(
  layers: readonly Spot[][],
  routes: readonly Route[],
  names: readonly string[],
  states: readonly Spot[],
): Row[] {
  const labelled = new Set(routes.flatMap((route) => (route.label === null ? [] : [route.label.layer])));
  const heights = layers.map<number>((_, layer) => (labelled.has(layer) ? LABEL_HEIGHT : 0));
  for (const [n, { layer }] of states.entries()) {
    heights[layer] = Math.max(heights[layer] ?? 0, heightOf(names[n] ?? ""));
  }
  let top = MARGIN;
  return heights.map((height, n) => {
    const row = { top, middle: top + height / 2, bottom: top + height };
    const across = Math.max(
      0,
      ...(layers[n] ?? []).flatMap((one) => one.below.map((next) => Math.abs(next.x - one.x))),
    );
    top = row.bottom + RISE + Math.min(MOST_RISE, Math.max(0, across - 90) / 9);
    return row;
  });
}

// --- lines ------------------------------------------------------------------------------------

type Point = [x: number, y: number];

function draw(
  ways: readonly Way[],
  routes: readonly Route[],
  states: readonly Spot[],
  placed: readonly PlacedState[],
  rows: readonly Row[],
): PlacedWay[] {
  const boxes = new Map(states.map((one, n) => [one, placed[n] as PlacedState]));
  const ports = portsOf(routes, boxes);
  const found: PlacedWay[] = [];
  for (const route of routes) {
    const { from, to, label } = ways[route.way] as Way;
    const upper = boxes.get(route.spots[0] as Spot) as PlacedState;
    const lower = boxes.get(route.spots.at(-1) as Spot) as PlacedState;
    const points: Point[] = [[ports.get(route)?.[0] ?? 0, upper.y + upper.height]];
    for (const { x, layer } of route.spots.slice(1, -1)) {
      const row = rows[layer] as Row;
      points.push([x, row.top], [x, row.bottom]);
    }
    points.push([ports.get(route)?.[1] ?? 0, lower.y]);
    const at = route.label;
    const row = at === null ? undefined : rows[at.layer];
    found.push({
      from,
      to,
      path: curve(route.up ? points.reverse() : points),
      label:
        at === null || row === undefined
          ? null
          : { text: label, x: at.x, y: row.middle, width: labelWidth(label) },
    });
  }
  for (const { from, to, begin, end, label } of ways) {
    if (begin !== end) continue;
    const { x, y, width, height } = placed[begin] as PlacedState;
    const side = x + width / 2;
    const [high, low] = [y + height / 2 - 10, y + height / 2 + 10].map(round);
    const path = `M${round(side)} ${high}C${round(side + LOOP)} ${(high ?? 0) - 8} ${round(side + LOOP)} ${(low ?? 0) + 8} ${round(side)} ${low}`;
    const middleOfLabel = side + LOOP - 4 + labelWidth(label) / 2;
    const labelled = { text: label, x: middleOfLabel, y: y + height / 2, width: labelWidth(label) };
    found.push({ from, to, path, label: label === "" ? null : labelled });
  }
  return found;
}

/** Where lines leave the lower edge of a state, and come to the upper one: side by side, as they go on from there. */
function portsOf(routes: readonly Route[], boxes: ReadonlyMap<Spot, PlacedState>): Map<Route, Point> {
  const ports = new Map<Route, Point>(routes.map((route) => [route, [0, 0]]));
  for (const side of [0, 1] as const) {
    const sides = new Map<Spot, Route[]>();
    for (const route of routes) {
      const state = route.spots.at(side === 0 ? 0 : -1) as Spot;
      sides.set(state, [...(sides.get(state) ?? []), route]);
    }
    for (const [state, all] of sides) {
      const { x, width } = boxes.get(state) as PlacedState;
      const next = (route: Route): number => (route.spots.at(side === 0 ? 1 : -2) as Spot).x;
      all.sort((a, b) => next(a) - next(b) || a.way - b.way);
      const step = all.length < 2 ? 0 : Math.min(26, (width - 24) / (all.length - 1));
      for (const [n, route] of all.entries()) {
        (ports.get(route) as Point)[side] = x + (n - (all.length - 1) / 2) * step;
      }
    }
  }
  return ports;
}

/** A line that leaves each point upright. */
function curve(points: readonly Point[]): string {
  let path = "";
  for (const [n, [x, y]] of points.entries()) {
    const before = points[n - 1];
    if (before === undefined) path += `M${round(x)} ${round(y)}`;
    else if (before[1] === y) continue;
    else if (Math.abs(before[0] - x) < 0.5) path += `V${round(y)}`;
    else {
      const half = round((before[1] + y) / 2);
      path += `C${round(before[0])} ${half} ${round(x)} ${half} ${round(x)} ${round(y)}`;
    }
  }
  return path;
}

const round = (value: number): number => Math.round(value * 10) / 10;
