"""The types of the answers, as they are used in annotations: `from heartbeatd.models import RunRecord`."""

from scheduler.web.response_bodies import *  # noqa: F403 (one list of the models is enough)
