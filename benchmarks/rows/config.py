"""Loading a large configuration."""

import statistics

from report import Row, at_most

from rows.group import Group

CONFIG = ["load and resolve a config of 100 sections for 1,000 layers"]


def config_rows(programs):
    samples = programs.run("config")["load and resolve"]
    yield Row(CONFIG[0], statistics.median(samples["telens"]), "s", at_most(0.5), samples)


GROUP = Group(CONFIG, config_rows)
