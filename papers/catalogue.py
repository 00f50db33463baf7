"""All figures and tables, in the order of the report."""

from papers.dsg_figure1 import dsg_figure1
from papers.dsg_figure2 import dsg_figure2
from papers.dsg_table3 import dsg_table3
from papers.dsg_tables456 import dsg_tables456
from papers.pgsvi_figure1 import pgsvi_figure1
from papers.pgsvi_figure2 import pgsvi_figure2
from papers.pgsvi_figure3 import EXPERIMENTS as PGSVI_FIGURE3
from papers.scgd_figure1 import scgd_figure1
from papers.scgd_figure2 import scgd_figure2
from papers.scgd_figure3 import scgd_figure3

EXPERIMENTS = (
    scgd_figure1,
    scgd_figure2,
    scgd_figure3,
    pgsvi_figure1,
    pgsvi_figure2,
    *PGSVI_FIGURE3,
    dsg_figure1,
    dsg_figure2,
    dsg_table3,
    dsg_tables456,
)
