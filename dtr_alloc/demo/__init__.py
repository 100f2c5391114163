"""The demonstration behind `dtr-alloc demo`: five models, eagerly and under budgets.

`models` holds the five programs, `train` runs and compares them, `report` shows what came out.
"""

from dtr_alloc.demo.models import MODELS, Job
from dtr_alloc.demo.report import draw, table, write_json
from dtr_alloc.demo.train import Comparison, Plan, Row, compare

__all__ = ["MODELS", "Comparison", "Job", "Plan", "Row", "compare", "draw", "table", "write_json"]
