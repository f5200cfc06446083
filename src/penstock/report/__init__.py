"""Measurements, plots and one self-contained page: how fast a loader is, how well an order mixes, whether a machine is fit.

Nothing here is about a terminal. matplotlib is imported when a plot is made.
"""

from penstock.report.doctor import Finding, examine
from penstock.report.kill import Kills, train, verify_kills
from penstock.report.labels import field_labels, sorted_labels
from penstock.report.mixing import Mixing, measure_order
from penstock.report.page import make_page, write_page
from penstock.report.plot import write_plots
from penstock.report.section import Figure, Section, Table, Tile
from penstock.report.speed import Speed, measure_loader

__all__ = [
    "Figure",
    "Finding",
    "Kills",
    "Mixing",
    "Section",
    "Speed",
    "Table",
    "Tile",
    "examine",
    "field_labels",
    "make_page",
    "measure_loader",
    "measure_order",
    "sorted_labels",
    "train",
    "verify_kills",
    "write_page",
    "write_plots",
]
