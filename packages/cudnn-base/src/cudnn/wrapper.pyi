# Generated from the manifests by tools/generate_catalog.py (nox -s stubs). Do not edit.

from cudnn_graph.enums import data_type as data_type
from cudnn_graph.enums import heur_mode as heur_mode
from cudnn_graph.wrapper import Graph as Graph
from cudnn_graph.wrapper import destroy_default_handle as destroy_default_handle
from cudnn_graph.wrapper import get_default_handle as get_default_handle
