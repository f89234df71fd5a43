"""The simulator: what a program costs in memory and time on a device, before anything runs."""

from .attach import Simulator as Simulator
from .calibration import Calibration as Calibration
from .calibration import calibrate as calibrate
from .calibration import nearest as nearest
from .device import Device as Device
from .memory import Memory as Memory
from .presets import DEVICES as DEVICES
from .presets import default_topology as default_topology
from .presets import get_device as get_device
from .presets import hosts_topology as hosts_topology
from .profile import Profile as Profile
from .profile import profile as profile
from .simulate import Simulation as Simulation
from .simulate import hosts_of as hosts_of
from .simulate import simulate as simulate
from .topology import Level as Level
from .topology import Topology as Topology
