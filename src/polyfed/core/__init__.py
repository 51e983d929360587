"""The narrow waist: what a method author touches, and nothing of any engine, dataset or method."""

from polyfed.core.class_tables import ClassMeans, ClassTable
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
    "TableField",
    "TensorField",
    "WeightsField",
    "ScalarField",
    "TreeField",
]
