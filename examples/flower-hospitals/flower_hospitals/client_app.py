"""flower-hospitals: what runs at every department."""

from fedbridge.engines.flower import client_app
from flower_hospitals.task import load_department

app = client_app(load=load_department)
