from heartbeat.library import Beat as Beat
from heartbeat.library import beat as beat
