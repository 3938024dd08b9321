"""The style sheet of HTML reports: light, dark, and for paper."""

CSS = """
:root { --back: #ffffff; --text: #1c2024; --quiet: #5b6570; --line: #dfe3e8; --card: #f5f7f9; --good: #00664a; --bad:
  #b03a00;
  --warn: #8a5a00; --goodback: #e3f4ee; --badback: #fde8df; --warnback: #fdf2d8; }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --text: #e6e9ec; --quiet: #9aa5b0; --line: #323a42;
  --card: #1d2329;
  --good: #5fd3ad; --bad: #ff9d70; --warn: #f0c060; --goodback: #10322a; --badback: #43200f; --warnback: #3a2d0c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 27px; margin: 0 0 4px; line-height: 1.25; }
h2 { font-size: 19px; margin: 34px 0 10px; padding-bottom: 4px; border-bottom: 1px solid var(--line); }
p { margin: 8px 0; }
.quiet, .unit, figcaption { color: var(--quiet); }
.quiet, figcaption { font-size: 13.5px; }
.unit { font-weight: normal; }
td .quiet { font-size: inherit; }
.badge { font-size: 13px; font-weight: 600; vertical-align: 4px; padding: 2px 10px; border-radius: 10px; background:
  var(--card); }
.good { color: var(--good); background: var(--goodback); }
.bad { color: var(--bad); background: var(--badback); }
.warn { color: var(--warn); background: var(--warnback); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; margin: 20px 0; }
.card { padding: 10px 12px; border-radius: 8px; background: var(--card); font-size: 13px; line-height: 1.3; }
.card.good { background: var(--goodback); } .card.bad { background: var(--badback); } .card.warn { background:
  var(--warnback); }
.card b { display: block; font-size: 22px; line-height: 1.3; }
.note { padding: 8px 12px; border-radius: 6px; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: 13.5px; min-width: 40%; }
th, td { padding: 4px 12px 4px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; border-bottom: 2px solid var(--line); }
.numbers td { font-variant-numeric: tabular-nums; white-space: nowrap; }
.numbers th { vertical-align: bottom; }
tr.violation td { background: var(--badback); color: var(--bad); }
time { white-space: nowrap; }
.numbers time, .numbers .quiet { white-space: normal; } time span { white-space: nowrap; }
.numbers td { padding-right: 10px; }
tr.voided td { color: var(--quiet); white-space: normal; }
tr.aborted td { background: var(--warnback); white-space: normal; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 16px; align-items: start; }
figure { margin: 0; }
.figures figure:first-child { grid-column: 1 / -1; }
figure img { width: 100%; max-width: 760px; height: auto; background: #ffffff; border-radius: 8px; border: 1px solid var(--line);
  padding: 6px; }
pre { background: var(--card); padding: 10px 12px; border-radius: 6px; overflow-x: auto; font-size: 12.5px; line-height:
  1.45; }
code { font-size: 12.5px; overflow-wrap: anywhere; }
@media print { :root { --back: #fff; --text: #000; --quiet: #444; --line: #bbb; --card: #f3f3f3; }
  main { max-width: none; padding: 0; } body { font-size: 11px; } table { font-size: 9.5px; } .numbers td, .numbers th {
  white-space: normal; }
  figure, .card, tr { break-inside: avoid; } h2 { break-after: avoid; } .scroll { overflow: visible; } details pre {
  white-space: pre-wrap; } }
"""
