"""Writes dashboards as TypeScript that does not compile unless they fit Grafana's schema, panels' options included.

types.py FOLDER FILE
"""

import json
import pathlib
import sys

# Enumerations are written as their values in JSON.
HEAD = """
import type { Dashboard, Panel, RowPanel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Plain<T> =
  T extends string ? `${T}` :
  T extends number ? (number extends T ? number : `${T}` extends `${infer N extends number}` ? N : never) :
  T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""


def main():
    folder, file = map(pathlib.Path, sys.argv[1:])
    out = [HEAD]
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        board = json.loads(path.read_text())
        panels = board.pop("panels")
        out.append(f"// {path.name}\nexport const board{number}: Plain<Dashboard> = {json.dumps(board)};\n")
        for panel in panels:
            name, kind = f"_{number}_{panel['id']}", panel["type"]
            if kind == "row":
                out.append(f"export const row{name}: Plain<RowPanel> = {json.dumps(panel)};\n")
                continue
            options, custom = panel.pop("options"), panel["fieldConfig"]["defaults"].pop("custom")
            out.append(f"export const panel{name}: Plain<Panel> = {json.dumps(panel)};\n")
            out.append(f"export const options{name}: Plain<{kind}.Options> = {json.dumps(options)};\n")
            if kind != "stat":
                out.append(f"export const custom{name}: Plain<Partial<{kind}.FieldConfig>> = {json.dumps(custom)};\n")
    file.write_text("".join(out))


if __name__ == "__main__":
    main()
