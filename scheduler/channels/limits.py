"""How long one message may be, in characters; known without the means to send one."""

TELEGRAM = 4096
DISCORD = 2000
