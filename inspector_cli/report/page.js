// Draws the data of a page. A served page polls for updates.
'use strict';
// Names come from a run file and may contain markup: only textContent may insert them.
// Places are heights from 0 to 10000. The command computes them, so that all axes agree.
let data = JSON.parse(document.getElementById('data').textContent);
const highestPlace = 10000;
const lineColors = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#555555'];  // Okabe, Ito
const blues = [[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
const notFinite = '#d7191c', warmUp = '#b0b0b0', notRecorded = '#f0f0f0';

// A value is a number, null if nothing was recorded, or a text such as "NaN". A number without a
// place belongs to warm-up.
const isBad = value => typeof value === 'string';
const isWarmUp = (value, place) => typeof value === 'number' && place === null;
const valueText = (value, place, unit) =>
    value === null ? 'not recorded' : value + unit + (isWarmUp(value, place) ? ', warm-up' : '');

function add(parent, tag, className, text) {
  const element = parent.appendChild(document.createElement(tag));
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Returns the x axis: iterations or ranks. `firsts` has the first one of each bin.
const axisOf = chart => chart.axis ||
    {name: 'iteration', firsts: data.iterations, last: data.lastIteration,
     ticks: data.iterationTicks};

function binText(axis, bin) {
  const first = axis.firsts[bin];
  const last = bin + 1 < axis.firsts.length ? axis.firsts[bin + 1] - 1 : axis.last;
  return last > first ? `${axis.name}s ${first} to ${last}` : `${axis.name} ${first}`;
}

function blue(place) {
  const position = place / highestPlace * (blues.length - 1);
  const lower = Math.min(Math.floor(position), blues.length - 2), part = position - lower;
  const mixed = blues[lower].map((c, i) => Math.round(c * (1 - part) + blues[lower + 1][i] * part));
  return `rgb(${mixed.join(',')})`;
}

// All plots have the same left edge, so that iterations are aligned.
const labelShare = chart => chart.width >= 640 ? 0.31 : 0.36;
const rightShare = 0.027;
// Returns the whole label if it fits, else one of 46 or 20 characters.
function shortLabel(row, chart) {
  const room = chart.width * labelShare(chart) - 16;
  if (chart.ctx.measureText(row.label).width <= room) return row.label;
  return chart.width >= 640 ? row.label46 : row.label20;
}

const binAxis = ({name, firsts, ticks}) => ({
  type: 'linear', min: 0, max: firsts.length, grid: {display: false},
  title: {display: true, text: name, padding: 0},
  afterBuildTicks: axis => { axis.ticks = ticks.map(([bin]) => ({value: bin + 0.5})); },
  ticks: {maxRotation: 0, callback: value => ticks.find(([bin]) => bin === value - 0.5)[1]}
});

function placeAxis(chart) {
  return {min: 0, max: highestPlace,
          afterBuildTicks: axis => { axis.ticks = chart.ticks.map(([value]) => ({value})); },
          ticks: {autoSkip: false,
                  callback: value => chart.ticks.find(([place]) => place === value)[1]}};
}

const keepLabelsApart = axis => { axis.width = axis.chart.width * labelShare(axis.chart); };

// A white background for saved pictures, and a mark at the iteration of the first problem.
const paper = {
  id: 'paper',
  beforeDraw: ({ctx, width, height}) => {
    ctx.fillStyle = 'white';
    ctx.fillRect(0, 0, width, height);
  }
};
const troubleMark = {
  id: 'trouble',
  afterDatasetsDraw: ({ctx, scales, chartArea}) => {
    if (!data.trouble) return;
    const x = scales.x.getPixelForValue(data.trouble.bin);
    ctx.save();
    ctx.strokeStyle = notFinite;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(x, chartArea.top);
    ctx.lineTo(x, chartArea.bottom);
    ctx.stroke();
    ctx.restore();
  }
};

function options(scales, plugins) {
  return {animation: false, maintainAspectRatio: false,
          layout: {padding: ({chart}) => ({right: chart.width * rightShare, top: 6})},
          scales, plugins: {legend: {display: false}, ...plugins}};
}

function markSet(name, color, rows, has) {
  const marked = [...rows[0].values.keys()].filter(
      bin => rows.some(row => has(row.values[bin], row.places[bin])));
  return {label: name, data: marked.map(bin => ({x: bin + 0.5, y: highestPlace})), isMark: true,
          showLine: false, pointRadius: 3, pointStyle: 'rect', borderColor: color,
          backgroundColor: color, clip: 4};
}

// Lines bridge bins without a record (freq: 10) and stop at non-finite values.
function lineSet(row, color) {
  const points = row.places.flatMap((y, bin) => y === null ? [] : [{x: bin + 0.5, y, bin}]);
  const interrupted = ({p0, p1}) =>
      row.values.slice(p0.parsed.x + 0.5, p1.parsed.x - 0.5).some(isBad);
  return {label: row.label, row, data: points, borderColor: color, backgroundColor: color,
          borderWidth: 1.5, clip: 4, pointRadius: points.length === 1 ? 3 : 0,
          segment: {borderColor: segment => interrupted(segment) ? 'transparent' : undefined}};
}

// Chart.js fits a canvas to its parent, so the parent needs a height.
function canvasIn(section, height) {
  const plot = add(section, 'div', 'plot');
  plot.style.height = `${height}px`;
  return add(plot, 'canvas');
}

function drawLines(section, chart) {
  const axis = axisOf(chart);
  const legend = chart.rows.length > 1 ? add(section, 'ul', 'legend') : null;
  const datasets = chart.rows.map((row, i) => lineSet(row, lineColors[i % lineColors.length]));
  datasets.push(markSet('not finite', notFinite, chart.rows, isBad));
  datasets.push(markSet('warm-up', warmUp, chart.rows, isWarmUp));
  const drawn = new Chart(canvasIn(section, 260), {
    type: 'line', data: {datasets}, plugins: chart.axis ? [paper] : [paper, troubleMark],
    options: {
      ...options({x: binAxis(axis), y: {...placeAxis(chart), afterFit: keepLabelsApart}},
                 {tooltip: {callbacks: {
                   title: items => binText(axis, items[0].parsed.x - 0.5),
                   label: ({dataset, parsed}) => dataset.isMark ? dataset.label :
                       `${dataset.label} ${dataset.row.values[parsed.x - 0.5]}`}}}),
      interaction: {mode: 'nearest', axis: 'x', intersect: false}}
  });
  chart.rows.forEach((row, i) => {
    if (!legend) return;
    const item = add(legend, 'li', '');
    item.title = row.label;
    add(item, 'i').style.background = lineColors[i % lineColors.length];
    item.append(row.label.length <= 80 ? row.label : row.label46);
    item.onclick = () => {
      drawn.setDatasetVisibility(i, item.classList.toggle('hidden') === false);
      drawn.update();
    };
  });
  return drawn;
}

function cellColor(value, place) {
  if (value === null) return notRecorded;
  if (isBad(value)) return notFinite;
  return place === null ? warmUp : blue(place);
}

function drawKey(chart, section) {
  const key = add(section, 'p', 'key', chart.lowest);
  const ramp = add(key, 'i', 'ramp');
  const steps = blues.map(color => `rgb(${color.join(',')})`);
  ramp.style.background = `linear-gradient(to right, ${steps.join(', ')})`;
  key.append(' ' + chart.highest);
  const entryIfAny = (has, color, text) => {
    if (!chart.rows.some(row => row.values.some((value, bin) => has(value, row.places[bin])))) return;
    add(key, 'i').style.background = color;
    key.append(text);
  };
  entryIfAny(isBad, notFinite, 'not finite');
  entryIfAny(isWarmUp, warmUp, 'warm-up');
}

// The rows of maps that are open as lines. They stay open when the page updates.
const openRows = new Map();

// Draws a row of a map as lines: the tensors of the layer, or the row itself.
function openRow(place, chart, row) {
  for (const old of place.charts || []) old.destroy();
  place.charts = [];
  place.replaceChildren();
  if (!row) return;
  const lines = row.tensors && row.tensors.length > 0 ? row.tensors : [row];
  const ticks = lines === row.tensors ? chart.tensorTicks : chart.ticks;
  const part = add(place, 'div', 'row');
  add(part, 'p', '', row.label);
  place.charts.push(drawLines(part, {rows: lines, ticks, axis: chart.axis}));
}

function drawMap(section, chart) {
  const rows = chart.rows;
  const rowHeight = Math.max(3, Math.min(16, Math.floor(560 / rows.length)));
  const labelEvery = Math.ceil(9 / rowHeight);
  drawKey(chart, section);
  section.classList.add('map');
  const axis = axisOf(chart);
  const canvas = canvasIn(section, rows.length * rowHeight + 50);
  const about = add(section, 'p', 'cell',
                    'Point at a cell to read it; click a row to see it as lines.');
  const opened = add(section, 'div');
  const cells = {
    id: 'cells',
    beforeDatasetsDraw: ({ctx, scales: {x, y}}) => rows.forEach((row, r) => {
      // Whole pixels prevent seams between cells of one color.
      const top = Math.round(y.getPixelForValue(r));
      const bottom = Math.round(y.getPixelForValue(r + 1));
      row.values.forEach((value, bin) => {
        const left = Math.floor(x.getPixelForValue(bin));
        ctx.fillStyle = cellColor(value, row.places[bin]);
        ctx.fillRect(left, top, Math.ceil(x.getPixelForValue(bin + 1)) - left, bottom - top);
      });
    })
  };
  const rowAxis = {
    type: 'linear', min: 0, max: rows.length, reverse: true, grid: {display: false},
    afterFit: keepLabelsApart,
    afterBuildTicks: axis => {
      axis.ticks = rows.flatMap((_, r) => r % labelEvery ? [] : [{value: r + 0.5}]);
    },
    ticks: {autoSkip: false, font: {size: 10}, callback: function(value) {
      return shortLabel(rows[value - 0.5], this.chart);
    }}
  };
  openRow(opened, chart, rows.find(row => row.label === openRows.get(chart.title)));
  const drawn = new Chart(canvas, {
    type: 'scatter', data: {datasets: [{data: []}]},
    plugins: chart.axis ? [paper, cells] : [paper, cells, troubleMark],
    options: {
      ...options({x: binAxis(axis), y: rowAxis}),
      events: ['mousemove', 'click', 'touchstart', 'touchmove'],
      onHover: (event, _, {scales: {x, y}}) => {
        const bin = Math.floor(x.getValueForPixel(event.x));
        const row = rows[Math.floor(y.getValueForPixel(event.y))];
        if (!row || !(bin >= 0 && bin < axis.firsts.length)) return;
        about.textContent = `${row.label}, ${binText(axis, bin)}: ` +
            valueText(row.values[bin], row.places[bin], chart.unit);
      }}
  });
  // Chart.js does not report clicks on labels.
  canvas.onclick = event => {
    const row = rows[Math.floor(drawn.scales.y.getValueForPixel(event.offsetY))];
    if (!row) return;
    const isOpen = openRows.get(chart.title) === row.label;
    openRows.set(chart.title, isOpen ? undefined : row.label);
    openRow(opened, chart, isOpen ? undefined : row);
  };
  return drawn;
}

function drawBars(section, chart) {
  return new Chart(canvasIn(section, chart.rows.length * 16 + 40), {
    type: 'bar', plugins: [paper],
    data: {labels: chart.rows.map(row => row.label),
           datasets: [{data: chart.rows.map(row => row.places[0]), backgroundColor: blue(6600)}]},
    options: {
      ...options({x: placeAxis(chart),
                  y: {afterFit: keepLabelsApart, grid: {display: false},
                      ticks: {autoSkip: true, font: {size: 10}}}},
                 {tooltip: {callbacks: {label: ({dataIndex}) => {
                   const row = chart.rows[dataIndex];
                   return valueText(row.values[0], row.places[0], chart.unit);
                 }}}}),
      indexAxis: 'y'}
  });
}

const draw = {lines: drawLines, map: drawMap, bars: drawBars};

// The findings, tables and texts of a report.
function addFinding(part, finding) {
  const box = add(part, 'div', 'finding');
  add(box, 'h3', '', finding.head);
  const list = add(box, 'dl');
  for (const [name, text] of finding.rows) {
    add(list, 'dt', '', name);
    add(list, 'dd', '', text);
  }
}

function addTable(part, table) {
  const rows = add(add(part, 'div', 'scroll'), 'table');
  const head = add(rows, 'tr');
  for (const column of table.columns) add(head, 'th', '', column);
  for (const cells of table.rows) {
    const row = add(rows, 'tr');
    for (const cell of cells) add(row, 'td', '', cell);
  }
}

function addSection(section) {
  const part = add(document.getElementById(section.place), 'section');
  add(part, 'h2', '', section.title);
  if (section.note) add(part, 'p', '', section.note);
  for (const finding of section.findings || []) addFinding(part, finding);
  if (section.table) addTable(part, section.table);
  if (section.text) add(part, 'pre', '', section.text);
}

function addChart(chart) {
  const part = add(document.getElementById('charts'), 'section');
  const heading = add(part, 'h2', '', chart.title);
  if (chart.note) add(heading, 'small', '', chart.note);
  const save = add(heading, 'button', '', 'save as PNG');
  const section = add(part, 'div', 'chart');
  const drawn = draw[chart.kind](section, chart);
  drawn.canvas.setAttribute('aria-label', chart.title);
  save.onclick = () => {
    const link = document.createElement('a');
    link.href = drawn.toBase64Image();
    link.download = `${data.run} ${chart.title}.png`;
    link.click();
  };
}

function show(id, text, gravity) {
  const element = document.getElementById(id);
  element.textContent = text;
  element.className = gravity || '';
}

function drawPage() {
  const scrolled = window.scrollY;
  for (const old of Object.values(Chart.instances)) old.destroy();
  for (const id of ['headlines', 'before', 'charts', 'after']) {
    document.getElementById(id).replaceChildren();
  }
  document.title = `TELens: ${data.title}`;
  show('title', document.title);
  show('run', `run ${data.run}`);
  if (data.state) show('state', data.state.text, data.state.gravity);
  show('subtitle', data.subtitle);
  for (const {text, gravity} of data.headlines) {
    add(document.getElementById('headlines'), 'p', `headline ${gravity}`, text);
  }
  for (const section of data.sections) addSection(section);
  for (const chart of data.charts) addChart(chart);
  window.scrollTo(0, scrolled);
}

// A page of `telens serve` polls for updates with the token of its URL.
function showLive(trouble) {
  if (trouble) return show('live', trouble, 'grave');
  show('live', `Following the run; last change at ${new Date().toLocaleTimeString()}.`);
}

async function poll() {
  const token = new URLSearchParams(location.search).get('token');
  try {
    const answer = await fetch(`data?token=${token}&after=${data.live.version}`);
    if (answer.status === 200) {
      data = await answer.json();
      drawPage();
      showLive(data.live.trouble);
    } else if (answer.status === 204) {
      if (document.getElementById('live').className) showLive(data.live.trouble);
    } else {
      throw new Error(answer.statusText);
    }
  } catch {
    showLive('telens serve no longer responds; this is the last state that it sent.');
  }
  setTimeout(poll, data.live.milliseconds);
}

drawPage();
if (data.live) {
  showLive(data.live.trouble);
  setTimeout(poll, data.live.milliseconds);
}
