"""The report: table, JSON, page, CSV and figures from archives, and from nothing else.

pandas' and matplotlib's only door. Importing this imports pandas and h5py; matplotlib comes in
when a figure is drawn.
"""

from pike_hpc.analysis.files import build_report, write_html, write_tables
from pike_hpc.analysis.parquet import write_parquet
from pike_hpc.analysis.report import Report
from pike_hpc.analysis.report_json import report_json
from pike_hpc.analysis.table import render_table

__all__ = [
    "Report",
    "build_report",
    "render_table",
    "report_json",
    "write_html",
    "write_parquet",
    "write_tables",
]
