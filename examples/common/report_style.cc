// SPDX-License-Identifier: Apache-2.0
#include "examples/common/report_style.h"

namespace tessera::examples {

// Text has a contrast of at least 4.5 to 1 on its ground, marks of charts 3 to 1, in both colour schemes.
const char kReportStyle[] = R"css(
:root { color-scheme: light dark; --page: #f4f5f7; --card: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d5dae0;
  --grid: #e4e8ec; --good: #1a6e2e; --bad: #a8201a; --busy: #0a57a8; --hatch: #ffffff;
  --k0: #0a57a8; --k1: #b3470b; --k2: #0a7d68; --k3: #7a3fb0; --k4: #a12b62; --k5: #6b6a00; --k6: #4a5563; --k7: #137c9c; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1216; --card: #181c22; --ink: #e8ebef; --soft: #a5afba;
  --rule: #363d46; --grid: #2a3038; --good: #6fd48a; --bad: #ff8f85; --busy: #7fbcff; --hatch: #181c22;
  --k0: #6db3ff; --k1: #ffa25c; --k2: #4fd0b5; --k3: #c69bf7; --k4: #ff8fc0; --k5: #d6d24a; --k6: #a9b5c4; --k7: #5fd0f0; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, Helvetica,
  Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 36px 0 12px; }
h3 { font-size: 1rem; margin: 0; display: inline; }
p { margin: 0 0 8px; }
.kicker, .unit, .note, .soft { color: var(--soft); }
.kicker { margin: 0; font-size: .9rem; }
.state { font-weight: 600; margin: 0 0 16px; overflow-wrap: anywhere; }
.state.good { color: var(--good); } .state.bad { color: var(--bad); } .state.busy { color: var(--busy); }
.card, .chart, .numbers > div, .samples > li { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.numbers { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 12px; margin: 0; }
.numbers > div { padding: 12px 14px; }
.numbers dt { color: var(--soft); font-size: .875rem; }
.numbers dd { margin: 0; }
.numbers .big { font-size: 1.5rem; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; display: block; }
.numbers .small { color: var(--soft); font-size: .875rem; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.chart { margin: 0; padding: 14px 14px 8px; min-width: 0; position: relative; }
.chart .note { font-size: .8125rem; margin: 4px 0 6px; }
.unit { font-size: .875rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 4px 0 6px; padding: 0; font-size: .8125rem; }
.legend li { display: flex; align-items: center; gap: 6px; }
.swatch { width: 30px; height: 12px; flex: none; }
.plot { display: block; width: 100%; height: auto; overflow: visible; touch-action: pan-y; }
.plot text { font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: var(--soft); }
.ty { text-anchor: end; dominant-baseline: central; } .tx, .title { text-anchor: middle; } .tx.end { text-anchor: end; }
.tx { dominant-baseline: hanging; }
.grid { stroke: var(--grid); } .tick, .base { stroke: var(--soft); fill: none; } .cursor { stroke: var(--soft); }
.line, .faint, .dots { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.line { stroke-width: 2; } .faint { stroke-width: 1; stroke-opacity: .6; } .dots { stroke-width: 8; }
.k0 { stroke: var(--k0); } .k1 { stroke: var(--k1); } .k2 { stroke: var(--k2); } .k3 { stroke: var(--k3); }
.k4 { stroke: var(--k4); } .k5 { stroke: var(--k5); } .k6 { stroke: var(--k6); } .k7 { stroke: var(--k7); }
.line.k2 { stroke-dasharray: 7 4; } .line.k3 { stroke-dasharray: 2 4; } .line.total { stroke: var(--ink); stroke-dasharray: 6 4; }
.area { stroke: var(--card); stroke-width: 1; } .hatch { fill: url(#hatch); stroke: none; }
.area.k0 { fill: var(--k0); } .area.k1 { fill: var(--k1); } .area.k2 { fill: var(--k2); } .area.k3 { fill: var(--k3); }
.area.k4 { fill: var(--k4); } .area.k5 { fill: var(--k5); } .area.k6 { fill: var(--k6); } .area.k7 { fill: var(--k7); }
.read { position: absolute; right: 12px; top: 10px; margin: 0; padding: 4px 10px; border: 1px solid var(--rule);
  border-radius: 8px; background: var(--card); font-size: .8125rem; font-variant-numeric: tabular-nums; white-space: pre-line;
  pointer-events: none; box-shadow: 0 2px 8px rgb(0 0 0 / .15); }
.read:empty { display: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: 7px 14px; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 600; }
tr:last-child > * { border-bottom: 0; }
td.number { font-variant-numeric: tabular-nums; }
.facts th { color: var(--soft); } .facts th:first-child { width: 11rem; }
.config th, .config td:nth-child(2), code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .85rem; }
.config th { font-weight: 400; } .config .default > * { color: var(--soft); } .config .set > th { font-weight: 700; }
code { overflow-wrap: anywhere; }
.samples { list-style: none; padding: 0; margin: 0; display: grid; gap: 12px; }
.samples > li { padding: 12px 16px; }
.samples h3 { display: block; } .samples .prompt { color: var(--soft); font-size: .875rem; overflow-wrap: anywhere; }
pre { margin: 6px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; max-width: 100ch;
  font: .875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.notices { padding: 10px 16px 10px 34px; margin: 0; } .notices li { overflow-wrap: anywhere; }
details > summary { cursor: pointer; padding: 10px 14px; color: var(--busy); }
footer { margin-top: 36px; color: var(--soft); font-size: .875rem; }
@media (max-width: 860px) { .charts { grid-template-columns: minmax(0, 1fr); }
  .numbers { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 520px) { main { padding: 16px 10px 32px; } .plot text { font-size: 20px; } .line { stroke-width: 3; }
  .dots { stroke-width: 11; } .numbers { gap: 8px; }
  .numbers > div { padding: 9px 11px; } .numbers .big { font-size: 1.25rem; } th, td { padding: 6px 10px; }
  .facts thead { position: absolute; left: -999em; } .facts tr, .facts th, .facts td { display: block; width: auto; } .facts th { border: 0; padding-bottom: 0; }
  .facts td { padding-top: 0; } .config thead { position: absolute; left: -999em; }
  .config tr, .config th, .config td { display: block; border: 0; padding: 1px 10px; } .config tr { padding: 6px 0; border-bottom: 1px solid var(--rule); }
  .config td:nth-child(3) { font-size: .8125rem; color: var(--soft); } }
@media print { :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #bbb; --grid: #ddd;
  --good: #1a6e2e; --bad: #a8201a; --busy: #0a57a8; --hatch: #fff; --k0: #0a57a8; --k1: #b3470b; --k2: #0a7d68; --k3: #7a3fb0;
  --k4: #a12b62; --k5: #6b6a00; --k6: #4a5563; --k7: #137c9c; }
  html { font-size: 9.5pt; } body { font-size: 1rem; } .plot text { font-size: 16px; } th, td { padding: 3pt 8pt; }
  main { max-width: none; padding: 0; } .read, .cursor, .screen { display: none; }
  .charts { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8pt; } .numbers { grid-template-columns: repeat(4, 1fr); }
  details::details-content { content-visibility: visible; block-size: auto; } details > summary { list-style: none; }
  .chart, .numbers > div, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
)css";

const char kReportScript[] = R"js(
document.querySelectorAll('svg.plot').forEach(function (svg) {
  var a = svg.dataset.axes.split(' ').map(Number), bytes = svg.dataset.unit === 'bytes';
  var read = svg.parentNode.querySelector('.read'), cursor = svg.querySelector('.cursor');
  function x(p) { return a[2] + (p - a[0]) / (a[1] - a[0]) * (a[3] - a[2]); }
  function y(p) {
    var t = (p - a[4]) / (a[5] - a[4]);
    return a[8] ? a[6] * Math.pow(a[7] / a[6], t) : a[6] + t * (a[7] - a[6]);
  }
  function step(p) { return Math.round(x(p)).toLocaleString('en'); }
  function show(v) {
    v = +v.toPrecision(4);
    if (!bytes) return Math.abs(v) >= 1000 ? v.toLocaleString('en') : String(v);
    var units = ['B', 'kB', 'MB', 'GB', 'TB'], i = 0;
    while (v >= 999.5 && i < 4) { v /= 1000; ++i; }
    return v.toFixed(i && v < 99.95 ? 1 : 0) + ' ' + units[i];
  }
  var lines = [].map.call(svg.querySelectorAll('[data-name]'), function (path) {
    var points = (path.getAttribute('d').match(/[\d.]+ [\d.]+/g) || []).map(function (p) { return p.split(' ').map(Number); });
    return { name: path.dataset.name, area: path.classList.contains('area'), points: points };
  });
  function move(event) {
    var box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    var best = null, text = '';
    lines.forEach(function (line) {
      var n = line.area ? line.points.length / 2 : line.points.length, i = -1;
      for (var j = 0; j < n; ++j) if (i < 0 || Math.abs(line.points[j][0] - at) < Math.abs(line.points[i][0] - at)) i = j;
      if (i < 0) return;
      line.at = i;
      if (best === null || Math.abs(line.points[i][0] - at) < Math.abs(best - at)) best = line.points[i][0];
    });
    if (best === null) return;
    lines.forEach(function (line) {
      if (line.at === undefined) return;
      var p = line.points, v = y(p[line.at][1]);
      if (line.area) v -= y(p[p.length - 1 - line.at][1]);
      var far = Math.abs(p[line.at][0] - best) > 12 ? ' (at step ' + step(p[line.at][0]) + ')' : '';
      text += '\n' + line.name + ': ' + show(v) + far;
    });
    read.textContent = 'step ' + step(best) + text;
    cursor.setAttribute('d', 'M' + best + ' ' + a[4] + 'V' + a[5]);
  }
  svg.addEventListener('pointermove', move);
  svg.addEventListener('pointerdown', move);
  svg.addEventListener('pointerleave', function () { read.textContent = ''; cursor.setAttribute('d', ''); });
});
)js";

}  // namespace tessera::examples
