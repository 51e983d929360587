// Groups of runs that differ in their seed only, with means and standard deviations over seeds.

/**
 * Group runs by method, and by the settings in which runs of a method differ. Without a config, group by method.
 * `runs` maps ids to summaries, `config(id)` returns a config or undefined.
 */
export function groupRuns(ids, runs, config) {
  const methods = new Map();
  for (const id of ids) {
    const method = runs.get(id)?.method || "unknown method";
    methods.set(method, [...(methods.get(method) ?? []), id]);
  }
  return [...methods].sort(([a], [b]) => order(a) - order(b) || (a < b ? -1 : 1)).flatMap(([method, members]) => {
    const all = members.map(config);
    const known = all.every(Boolean) ? all.map(experiment) : []; // until all configs are there, group by method
    const readable = known.filter(Boolean);
    const keys = [...new Set(readable.flatMap((each) => Object.keys(each)))].filter((key) => readable.some((each) => each[key] !== readable[0][key]));
    const groups = new Map();
    members.forEach((id, k) => {
      const parts = known[k] === null ? ["unreadable config"] : keys.map((key) => `${key.split(".").at(-1)} ${known[k][key] ?? "(none)"}`);
      const name = [method, ...parts].join(", ");
      groups.set(name, [...(groups.get(name) ?? []), id]);
    });
    const { colour, dashes } = runs.get(members[0]) ?? { colour: 0, dashes: 0 };
    // settings of one method share its colour and differ in dashes
    return [...groups].map(([name, each], k) => ({ name, method, ids: each, colour, dashes: (dashes + k) % 5 }));
  });
}

const order = (method) => (method === "local" ? 0 : 1); // the baseline comes first

/** Return the settings that define an experiment, without those that differ between its repetitions; null if unreadable. */
function experiment(config) {
  if (config.error !== undefined) return null;
  return Object.fromEntries(Object.entries(config.settings).filter(([key]) => !config.repeated.includes(key.split(".")[0])));
}

/** Return mean, sample standard deviation (null for one value) and number of values; null without values. */
export function spread(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  const squares = known.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, std: known.length > 1 ? Math.sqrt(squares / (known.length - 1)) : null, n: known.length };
}

/** Return [x, mean, standard deviation] for each round. `runs` holds the rounds of each run, `at` returns their x. */
export function meanCurve(runs, key, at) {
  const byRound = new Map();
  for (const rounds of runs) {
    const places = at(rounds);
    rounds.forEach((round, k) => {
      if (round[key] === null || round[key] === undefined) return;
      const entry = byRound.get(round.round) ?? { places: [], values: [] };
      entry.places.push(places[k]);
      entry.values.push(round[key]);
      byRound.set(round.round, entry);
    });
  }
  return [...byRound].sort(([a], [b]) => a - b).map(([, { places, values }]) => {
    const { mean, std } = spread(values);
    return [spread(places).mean, mean, std];
  });
}

/** Return the mean gain of a group over a baseline, over the seeds that both have. */
export function gain(values, baseline) {
  const pairs = [...values].filter(([seed, value]) => value !== null && (baseline.get(seed) ?? null) !== null);
  return spread(pairs.map(([seed, value]) => value - baseline.get(seed)));
}
