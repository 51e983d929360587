"""The interfaces that methods are written against: Method, Server, Client, Cohort, steps and message schemas.

Also the machinery behind them: the round loop (`rounds`), calls (`door`), evaluation, and the client side (`host`).
Nothing here knows a particular engine, dataset or method.
"""

from polyfed.core.class_tables import ClassMeans, ClassTable, LastClassMeans
from polyfed.core.client import Client
from polyfed.core.cohort import Cohort
from polyfed.core.method import Method, Outgoing, Sends, register
from polyfed.core.needs import Needs
from polyfed.core.payload import Payload, Value
from polyfed.core.schema import ScalarField, TableField, TensorField, TreeField, WeightsField
from polyfed.core.server import Server
from polyfed.core.step import Reply, step

__all__ = [
    "Method",
    "register",
    "Needs",
    "Sends",
    "Outgoing",
    "Server",
    "Client",
    "Cohort",
    "step",
    "Reply",
    "Payload",
    "Value",
    "ClassTable",
    "ClassMeans",
    "LastClassMeans",
    "TableField",
    "TensorField",
    "WeightsField",
    "ScalarField",
    "TreeField",
]
