// The charts of a project, and how long ago each run was made.

const { runs, charts } = JSON.parse(document.getElementById("data").textContent);
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const FONT = "13px system-ui, sans-serif";
const rootStyle = getComputedStyle(document.documentElement);
const colour = (name) => rootStyle.getPropertyValue(`--${name}`).trim();
const short = (value) => (value === null || value === undefined ? "\u2013" : String(Number(value.toPrecision(6))));

// A run with which a figure got worse has a red line, any other shift a grey one.
function marked({ marks }) {
  return (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([4, 4]);
    for (const [run, isWorse] of marks) {
      const x = Math.round(plot.valToPos(run, "x", true));
      ctx.strokeStyle = ctx.fillStyle = colour(isWorse ? "stop" : "muted");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (!isWorse) continue;
      const size = 6 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x - size, bbox.top);
      ctx.lineTo(x + size, bbox.top);
      ctx.lineTo(x, bbox.top + 1.5 * size);
      ctx.fill();
    }
    ctx.restore();
  };
}

// The legend stands in the page, with the last values; under the pointer it has those of that run.
function followed(legend, columns) {
  const values = legend.querySelectorAll(".value");
  const run = legend.querySelector(".run");
  const last = [run.textContent, ...Array.from(values, (value) => value.textContent)];
  return ({ cursor: { idx } }) => {
    const isAway = idx === null || idx === undefined;
    run.textContent = isAway ? last[0] : `Run ${runs[idx]}`;
    values.forEach((value, order) => (value.textContent = isAway ? last[order + 1] : short(columns[order][idx])));
  };
}

function draw(place, chart) {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: FONT };
  const series = chart.lines.map(({ variant, tone, dash }) => {
    const stroke = colour(tone);
    const points = { show: true, size: 7, fill: colour("paper"), stroke };
    return { label: variant, stroke, width: 1.8, dash: dash.split(" ").filter(Boolean).map(Number), points, spanGaps: true };
  });
  const columns = chart.lines.map(({ points }) => {
    const values = Array(runs.length).fill(null);
    for (const [at, value] of points) values[at] = value;
    return values;
  });
  const options = {
    width: place.clientWidth, height: 240, series: [{}, ...series],
    legend: { show: false },
    scales: { x: { time: false } },
    axes: [{ ...axis, incrs: WHOLE, space: 60, size: 32 }, { ...axis, size: 64, values: (_, ticks) => ticks.map(short) }],
    hooks: { draw: [marked(chart)], setCursor: [followed(place.nextElementSibling, columns)] },
    cursor: { drag: { setScale: false } },
  };
  const plot = new uPlot(options, [runs, ...columns], place);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 240 })).observe(place);
}

document.querySelectorAll(".plot").forEach((place, order) => draw(place, charts[order]));

// A tag in a table that can be searched is a button: it leaves the rows that have it.
for (const tag of document.querySelectorAll("table.searchable .tag")) {
  const field = tag.closest(".scroll").previousElementSibling.querySelector("input");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "tag";
  button.textContent = tag.textContent;
  button.addEventListener("click", () => {
    field.value = field.value === button.textContent ? "" : button.textContent;
    field.dispatchEvent(new Event("input"));
  });
  tag.replaceWith(button);
}

const UNITS = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60]];
for (const time of document.querySelectorAll("time")) {
  const then = new Date(time.dateTime);
  const seconds = (Date.now() - then) / 1000;
  if (Number.isNaN(seconds)) continue;
  const [unit, size] = UNITS.find((one) => seconds >= one[1]) || UNITS[4];
  const ago = new Intl.RelativeTimeFormat("en", { numeric: "auto" }).format(-Math.round(seconds / size), unit);
  time.title = time.textContent;
  time.textContent = `${ago} (${time.dateTime.slice(0, 10)})`;
}
